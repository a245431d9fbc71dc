"""Loops, and random numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import KEY, B, D, H, X, Y, case, hidden, loss_case, nll, sgd


@loss_case(batch=(np.tile(X[:, None], (1, 4, 1)), Y))
def recurrent(p, x, y):
    """A scan over time, whose carry begins without the batch."""

    def cell(h, now):
        h = jnp.tanh(now @ p["w1"] + 0.5 * h)
        return h, h.sum()

    h, sums = lax.scan(cell, jnp.zeros((B, H)), jnp.swapaxes(x, 0, 1))
    return -jnp.mean(jax.nn.log_softmax(h @ p["w2"])[:, 0]) + 1e-3 * sums.sum()


@case(state=(np.ones((B, H), "f"),))
def hidden_state_kept_between_steps(p, h, x, y):
    """State that holds a row for each example."""

    def loss(p):
        new = jnp.tanh(x @ p["w1"] + h)
        return jnp.mean(new @ p["w2"]), new

    (value, new), g = jax.value_and_grad(loss, has_aux=True)(p)
    return sgd(p, g), new, value


@case()
def chunks_accumulated_by_the_user(p, x, y):
    """The script accumulates gradients over chunks of the batch itself."""

    def one(total, xy):
        value, g = jax.value_and_grad(lambda p: nll(p, *xy).mean())(p)
        return jax.tree.map(jnp.add, total, g), value

    total, values = lax.scan(one, jax.tree.map(jnp.zeros_like, p), (x.reshape(2, 4, D), y.reshape(2, 4)))
    return sgd(p, jax.tree.map(lambda g: g / 2, total)), values.mean()


@case("statistic")
def several_steps_in_one(p, x, y):
    """A scan over batches that updates the parameters each time."""

    def one(p, xy):
        value, g = jax.value_and_grad(lambda p: nll(p, *xy).mean())(p)
        return sgd(p, g), value

    return lax.scan(one, p, (jnp.stack([x, 2 * x]), jnp.stack([y, y])))


@loss_case("loop")
def iterated_until_all_are_done(p, x, y):
    """while_loop until the largest of the batch is small."""
    h = lax.stop_gradient(hidden(p, x))
    h = lax.while_loop(lambda h: jnp.max(jnp.abs(h)) > 0.1, lambda h: 0.5 * h, h)
    return jnp.mean((h + hidden(p, x)) @ p["w2"])


@loss_case()
def iterated_a_fixed_number_of_times(p, x, y):
    """fori_loop that counts."""
    h = lax.fori_loop(0, 3, lambda k, h: jnp.tanh(h + 0.1 * k), hidden(p, x))
    return jnp.mean(h @ p["w2"])


@case(state=(KEY,))
def dropout(p, key, x, y):
    """Random numbers for the whole batch from one key."""
    key, use = jax.random.split(key)

    def loss(p):
        h = hidden(p, x)
        return jnp.mean((h * jax.random.bernoulli(use, 0.5, h.shape)) @ p["w2"])

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), key, value


@case(state=(KEY,))
def noise_of_a_key_for_each_example(p, key, x, y):
    """A key for each example, one of which is kept."""
    keys = jax.random.split(key, B)

    def loss(p):
        noise = jax.vmap(lambda k: jax.random.normal(k, (D,)))(keys)
        return nll(p, x + noise, y).mean()

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), keys[0], value
