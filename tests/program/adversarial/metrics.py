"""Metrics: counts, extremes, statistics, values of each example."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import C, hidden, metric_case, nll


@metric_case()
def integer_counts(p, x, y):
    """Integer metrics: counts, a halved count, any and all."""
    right = (hidden(p, x) @ p["w2"]).argmax(-1) == y
    return right.sum(), right.sum() // 2, right.sum().astype("int8"), right.any(), right.all(), (~right).any()


@metric_case()
def extremes(p, x, y):
    """Maxima and minima, and what is computed from them."""
    loss = nll(p, x, y)
    return (
        loss.max(),
        loss.min(),
        jnp.maximum(loss.max(), 0.3),
        jnp.exp(loss.max()),
        -loss.max(),
        loss.max() - loss.min(),
    )


@metric_case()
def confusion(p, x, y):
    """A confusion matrix, by scatter and by a product."""
    guess = (hidden(p, x) @ p["w2"]).argmax(-1)
    return jnp.zeros((C, C), jnp.int32).at[y, guess].add(1), jax.nn.one_hot(y, C).T @ jax.nn.one_hot(guess, C)


@metric_case()
def median_and_best(p, x, y):
    """Metrics that sort: median, top-k, argmin; and a product over the batch."""
    loss = nll(p, x, y)
    return jnp.median(loss), lax.top_k(loss, 2), loss.argmin(), jnp.prod(loss)


@metric_case()
def variance_of_losses(p, x, y):
    """Variance, deviation and logsumexp over the batch."""
    loss = nll(p, x, y)
    return jnp.var(loss), jnp.std(loss), jax.nn.logsumexp(loss)


@metric_case()
def ratio_of_sums(p, x, y):
    """Ratios, squares and reciprocals of sums."""
    loss = nll(p, x, y)
    return (loss * y).sum() / y.sum(), loss.sum() ** 2, 1 / loss.mean()


@metric_case()
def losses_themselves(p, x, y):
    """Results with a row for each example, also transposed and joined."""
    return nll(p, x, y), hidden(p, x).T, jnp.concatenate([x, 2 * x])


@metric_case()
def bits_of_labels(p, x, y):
    """Bitwise or of integers over the batch."""
    return lax.reduce(y, np.int32(0), lax.bitwise_or, (0,)), lax.reduce(y > 1, np.bool_(False), lax.bitwise_or, (0,))


@metric_case()
def mean_beginning_with_one(p, x, y):
    """A sum that begins with one, not zero."""
    return lax.reduce(nll(p, x, y), np.float32(1.0), lax.add, (0,))
