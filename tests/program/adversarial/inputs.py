"""Examples that meet before the model, in the data alone; and in branches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tests.program.adversarial.case import KEY, B, case, hidden, loss_case, nll, sgd


@loss_case()
def rolled_inputs(p, x, y):
    """roll over the batch, of the data alone."""
    return nll(p, 0.7 * x + 0.3 * jnp.roll(x, 1, 0), y).mean()


@loss_case()
def reversed_inputs(p, x, y):
    """Reversal of the batch, of the data alone."""
    return nll(p, x[::-1], y[::-1]).mean()


@loss_case()
def sorted_by_label(p, x, y):
    """The batch is sorted, and weighted by its new order."""
    order = jnp.argsort(y)
    return jnp.sum(nll(p, x[order], y[order]) * jnp.linspace(0, 1, B))


@loss_case()
def running_sum_of_inputs(p, x, y):
    """cumsum over the batch, of the data alone."""
    return nll(p, jnp.cumsum(x, 0), y).mean()


@loss_case()
def standardised_inputs(p, x, y):
    """Mean and deviation of the whole batch, of the data alone."""
    return nll(p, (x - x.mean(0)) / (x.std(0) + 1e-3), y).mean()


@loss_case()
def standardised_by_fast_variance(p, x, y):
    """The same from the mean of squares."""
    mean = x.mean(0)
    return nll(p, (x - mean) * lax.rsqrt((x**2).mean(0) - mean**2 + 1e-3), y).mean()


@case(state=(KEY,))
def mixup(p, key, x, y):
    """mixup: each example is mixed with another one, by a permutation drawn from the key."""
    key, a, b = jax.random.split(key, 3)
    order, share = jax.random.permutation(a, B), jax.random.beta(b, 0.5, 0.5)

    def loss(p):
        mixed = share * x + (1 - share) * x[order]
        return jnp.mean(share * nll(p, mixed, y) + (1 - share) * nll(p, mixed, y[order]))

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), key, value


@loss_case()
def branch_by_the_inputs(p, x, y):
    """cond on a mean over the batch, of the data alone."""
    return lax.cond(x.mean() > 0, lambda: nll(p, x, y), lambda: nll(p, -2 * x, y)).mean()


@loss_case("statistic")
def branch_by_the_model(p, x, y):
    """cond on a mean over the batch of what the model makes."""
    h = hidden(p, x)
    h = lax.cond(h.mean() > 0, lambda h: h, lambda h: -2 * h, h)
    return jnp.mean(h @ p["w2"])


@loss_case()
def branch_for_each_example(p, x, y):
    """vmap of cond."""

    def one(row, label):
        return lax.cond(label > 0, lambda r: jnp.tanh(r @ p["w1"]).sum(), lambda r: (r**2).sum() * p["b1"][0], row)

    return jax.vmap(one)(x, y).mean()


@loss_case("mixing")
def smallest_first_half(p, x, y):
    """sort over the batch of what the model makes."""
    h = hidden(p, x)
    return jnp.mean(lax.sort(h, dimension=0)[: B // 2] @ p["w2"])
