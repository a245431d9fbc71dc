"""What is done with gradients, and state that the batch writes to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import B, C, H, case, hidden, nll, sgd


@case()
def clipped_for_each_example(p, x, y):
    """Per-example clipping: vmap of grad, a norm for each example."""
    g = jax.vmap(jax.grad(lambda p, x, y: nll(p, x[None], y[None])[0]), (None, 0, 0))(p, x, y)
    norm = jnp.sqrt(sum(jnp.sum(a**2, tuple(range(1, a.ndim))) for a in jax.tree.leaves(g)))
    scale = jnp.minimum(1.0, 0.5 / norm)
    return sgd(p, jax.tree.map(lambda a: jnp.einsum("b,b...->...", scale, a) / B, g)), norm.mean()


@case()
def clipped_by_the_global_norm(p, x, y):
    """A norm of all gradients, which is no sum over examples."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    norm = jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(g)))
    return sgd(p, jax.tree.map(lambda a: a * jnp.minimum(1.0, 0.5 / norm), g)), value, norm


@case()
def skipped_where_not_finite(p, x, y):
    """cond on whether all gradients are finite."""
    g = jax.grad(lambda p: nll(p, x, y).mean())(p)
    fine = jnp.all(jnp.array([jnp.isfinite(a).all() for a in jax.tree.leaves(g)]))
    return lax.cond(fine, lambda: sgd(p, g), lambda: p), fine


@case("statistic")
def sharpness_aware(p, x, y):
    """A second gradient at parameters that the first one moved."""

    def loss(p):
        return nll(p, x, y).mean()

    g = jax.grad(loss)(p)
    return sgd(p, jax.grad(loss)(jax.tree.map(lambda a, b: a + 0.05 * jnp.sign(b), p, g)))


@case(state=(np.zeros((C, H), "f"),))
def bank_overwritten_by_label(p, bank, x, y):
    """State that examples overwrite; the last one of each label stays."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), bank.at[y].set(hidden(p, x)), value


@case(state=(np.full((C, H), 0.5, "f"),))
def bank_added_to_by_label(p, bank, x, y):
    """State that examples add to."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), bank.at[y].add(hidden(p, x)), value


@case(state=(np.full((C,), 0.2, "f"),))
def largest_loss_of_each_label(p, largest, x, y):
    """State that keeps a maximum for each label."""
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), largest.at[y].max(nll(p, x, y)), value
