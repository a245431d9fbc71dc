import jax
import jax.numpy as jnp
import optax
import pytest

from automap_launch.frontends.step_evidence import evidence, stacked

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
X = jnp.ones((4, 3))


def loss(p, x):
    return jnp.mean((x @ p["w"] + p["b"]) ** 2) + 0.1 * sum(jnp.sum(v**2) for v in p.values())


def sgd(p, x):
    return jax.tree.map(lambda v, g: v - 0.1 * g, p, jax.grad(loss)(p, x))


def adam(p, s, x):
    value, grads = jax.value_and_grad(loss)(p, x)
    updates, s = optax.adamw(1e-2).update(grads, s, p)
    return optax.apply_updates(p, updates), s, value


def accumulated(p, x):
    zeros = jax.tree.map(jnp.zeros_like, p)
    total, _ = jax.lax.scan(lambda t, r: (jax.tree.map(jnp.add, t, jax.grad(loss)(p, r[None])), None), zeros, x)
    return jax.tree.map(lambda v, g: v - 0.1 * g, p, total)


def guarded(p, x):
    new = jax.jit(sgd)(p, x)
    return jax.tree.map(lambda n, o: jnp.where(jnp.isfinite(x).all(), n, o), new, p)


def several_steps(p, x):
    return jax.lax.scan(lambda p, r: (sgd(p, r[None]), None), p, x)[0]


def several_steps_of_fori(p, x):
    return jax.lax.fori_loop(0, 3, lambda i, p: sgd(p, x), p)


def averaged(p, x):
    return jax.tree.map(lambda v: 0.9 * v + 0.1 * x.sum(), p)


def of(function, *args):
    return evidence(jax.make_jaxpr(function)(*args).jaxpr)


# Leaves 0 and 1 are the parameters `b` and `w`, among arguments and results alike.
BOTH = {(0, 0), (1, 1)}


@pytest.mark.parametrize("step", [sgd, accumulated, guarded, jax.checkpoint(sgd)])
def test_a_step_adds_to_its_parameters(step):
    found = of(step, PARAMS, X)
    assert found.differentiates
    assert found.additive == BOTH
    assert not found.looped


def test_moments_of_an_optimizer_do_not_count_but_its_parameters_do():
    state = optax.adamw(1e-2).init(PARAMS)
    additive = of(adam, PARAMS, state, X).additive
    assert additive >= BOTH
    assert (2, 2) in additive  # the step count
    assert not any((i, i) in additive for i in (3, 4, 5, 6))  # mu and nu


@pytest.mark.parametrize("gradient", [jax.grad(loss), jax.jit(jax.grad(loss)), jax.checkpoint(jax.grad(loss))])
def test_gradients_are_no_step_even_with_weight_decay_in_the_loss(gradient):
    found = of(gradient, PARAMS, X)
    assert found.differentiates
    assert not found.additive


@pytest.mark.parametrize("loop", [several_steps, several_steps_of_fori])
def test_a_loop_over_steps_is_told_from_a_step(loop):
    found = of(loop, PARAMS, X)
    assert found.differentiates
    assert not found.additive
    assert found.looped == BOTH


def test_a_moving_average_takes_no_gradients_and_adds_nothing():
    found = of(averaged, PARAMS, X)
    assert not found.differentiates
    assert not found.additive
    assert not found.looped


def test_what_is_returned_as_it_came():
    assert of(lambda p, x: (x, p["w"] + 1), PARAMS, X).forwarded == {(2, 0)}


def test_constants_in_front_are_not_counted():
    jaxpr = jax.make_jaxpr(lambda c, p: p + 1)(1.0, 2.0).jaxpr
    assert evidence(jaxpr, constants=1).additive == {(0, 0)}


def test_stacks_of_batches_are_told_from_sequences():
    def recurrent(p, x):
        def value(p):
            return jax.lax.scan(lambda h, r: (jnp.tanh(h + r @ p["w"]), None), jnp.zeros(2), x)[0].sum()

        return jax.tree.map(lambda v, g: v - 0.1 * g, p, jax.grad(value)(p))

    for step, expected in ((jax.jit(accumulated), {2}), (several_steps, {2}), (recurrent, set()), (sgd, set())):
        assert stacked(jax.make_jaxpr(step)(PARAMS, X).jaxpr) == expected
