"""What scripts do besides a loss of the batch: state of their own, several models, loops of unknown length."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import KEY, B, C, D, H, case, hidden, loss_case, metric_case, nll, params, sgd


@case()
def smallest_loss_and_its_place(p, x, y):
    """Variadic reduce: the least loss and its place in one reduction."""

    def smaller(a, b):
        first = a[0] <= b[0]
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    least = lax.reduce((nll(p, x, y), jnp.arange(B)), (jnp.inf, jnp.int32(0)), smaller, (0,))
    return sgd(p, g), value, least


@case("mixing")
def gradients_taken_one_example_after_the_other(p, x, y):
    """lax.map of grad over the examples."""
    g = lax.map(lambda row: jax.grad(lambda p: nll(p, row[0][None], row[1][None])[0])(p), (x, y))
    return sgd(p, jax.tree.map(lambda a: a.mean(0), g)), g["b1"].max()


@loss_case("loop")
def iterated_until_each_is_done(p, x, y):
    """vmap of while_loop: one loop for all, until the slowest is done."""

    def root(a):
        return lax.while_loop(lambda r: jnp.abs(r * r - a) > 1e-3, lambda r: (r + a / r) / 2, a)

    scale = jax.vmap(root)(1 + lax.stop_gradient(hidden(p, x)[:, 0]) ** 2)
    return jnp.mean(nll(p, x, y) * scale)


@case(state=(np.zeros(H, "f"),))
def running_mean_that_the_model_does_not_read(p, mean, x, y):
    """A running statistic of the batch in the state."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), 0.9 * mean + 0.1 * hidden(p, x).mean(0), value


@case(state=(KEY,))
def noise_in_the_gradients(p, key, x, y):
    """Noise added to the gradients once a step."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    key, *keys = jax.random.split(key, 1 + len(g))
    noisy = {name: g[name] + 0.1 * jax.random.normal(k, g[name].shape) for name, k in zip(g, keys, strict=True)}
    return sgd(p, noisy), key, value


@case(state=(jax.tree.map(np.zeros_like, params()), np.int32(1)))
def gradients_applied_every_other_step(p, kept, count, x, y):
    """cond on a counter, with gradients kept in the state."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    total = jax.tree.map(jnp.add, kept, g)
    new = lax.cond(count % 2 == 1, lambda: sgd(p, total), lambda: p)
    kept = lax.cond(count % 2 == 1, lambda: jax.tree.map(jnp.zeros_like, total), lambda: total)
    return new, kept, count + 1, value


@loss_case("statistic")
def distance_to_the_mean_of_its_class(p, x, y):
    """Each example against a segment mean of the batch."""
    h = hidden(p, x)
    sums, counts = jax.ops.segment_sum(h, y, C), jax.ops.segment_sum(jnp.ones(B), y, C)
    return jnp.mean((h - (sums / jnp.maximum(counts, 1)[:, None])[y]) ** 2)


@loss_case("mixing")
def first_half_against_the_second(p, x, y):
    """One half of the batch against the other."""
    h = hidden(p, x)
    return jnp.mean(jnp.maximum(0.0, 1 - jnp.sum(h[: B // 2] * h[B // 2 :], 1)))


@loss_case("statistic")
def dice(p, x, y):
    """A ratio of two sums over the batch, both of what the model makes."""
    guess = jax.nn.softmax(hidden(p, x) @ p["w2"])
    wanted = jax.nn.one_hot(y, C)
    return 1 - 2 * jnp.sum(guess * wanted) / (jnp.sum(guess) + jnp.sum(wanted))


@case(state=(params(),))
def taught_by_a_model_that_follows(p, teacher, x, y):
    """A teacher in the state that follows the parameters."""

    def loss(p):
        soft = jax.nn.softmax(hidden(teacher, x) @ teacher["w2"])
        return -jnp.mean(jnp.sum(soft * jax.nn.log_softmax(hidden(p, x) @ p["w2"]), 1)) + nll(p, x, y).mean()

    value, g = jax.value_and_grad(loss)(p)
    new = sgd(p, g)
    return new, jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, teacher, new), value


@case(state=(params(),))
def two_models_in_one_step(p, other, x, y):
    """Two losses, two models; no operation leads to the gradients of both."""
    one, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    two, h = jax.value_and_grad(lambda p: jnp.mean(jnp.abs(hidden(p, -x) @ p["w2"])))(other)
    return sgd(p, g), sgd(other, h), one + two


@metric_case()
def a_second_pass_for_metrics_alone(p, x, y):
    """A forward pass whose results are metrics only."""
    h = hidden(p, 2 * x)
    return nll(p, x[:, ::-1], y).max(), jnp.tanh(h @ p["w1"].T @ p["w1"] @ p["w2"]).sum()


@loss_case()
def negatives_drawn_by_the_labels(p, x, y):
    """Which other example each meets is known from the data alone."""
    return jnp.mean((hidden(p, x) - hidden(p, x[y])) ** 2)


@loss_case()
def rolled_within_each_example(p, x, y):
    """roll within each example."""
    h = hidden(p, x)
    return jnp.mean(h * jnp.roll(h, 3, 1))


@loss_case("mixing")
def product_of_all_before(p, x, y):
    """associative_scan over the batch."""
    return jnp.mean(lax.associative_scan(jnp.multiply, 1 + 0.1 * hidden(p, x), axis=0))


# In micro-batches as it stands, but not as a straight line


@case("loop", state=(np.float32(0.5),))
def branch_that_may_never_end(p, limit, x, y):
    """A loop of unknown length in a branch that is not taken."""

    def far(a):
        return lax.while_loop(lambda a: jnp.abs(a).sum() > limit, lambda a: a / 2, a)

    def loss(p):
        scale = lax.cond(limit > 9, far, lambda a: a, lax.stop_gradient(p["b1"]))
        return nll({**p, "b1": p["b1"] + 0.1 * scale}, x, y).mean()

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), limit, value


@case("loop", state=(np.int32(3),))
def as_many_rounds_as_the_state_says(p, rounds, x, y):
    """A loop whose length the state holds."""

    def loss(p):
        h = lax.stop_gradient(lax.fori_loop(0, rounds, lambda _, h: jnp.tanh(1.1 * h), hidden(p, x)))
        return jnp.mean(((h + hidden(p, x)) @ p["w2"]) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), rounds, value


@case("mixing")
def several_batches_of_one_in_one_step(p, x, y):
    """Each example is a batch of its own, one after the other, all at the same parameters."""

    def one(total, row):
        value, g = jax.value_and_grad(lambda p: nll(p, row[0][None], row[1][None])[0])(p)
        return jax.tree.map(jnp.add, total, g), value

    total, values = lax.scan(one, jax.tree.map(jnp.zeros_like, p), (x, y))
    return sgd(p, jax.tree.map(lambda a: a / B, total)), values.mean() * D
