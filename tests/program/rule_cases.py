"""A small step for each linkage rule: `x @ w`, the rule's operation, `@ v`, with the batch and a hidden dim sharded.

A rule that failed to link a dim, or linked a wrong one, would foresee other bytes than XLA's partitioned module moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any

BATCH, LENGTH, WIDTH, HIDDEN = 16, 8, 32, 64


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def trained(forward: Callable[..., Array]) -> Callable[..., Any]:
    """A step of gradient descent on the mean square of what `forward(weights, *batch)` gives."""

    def step(weights: Any, *batch: Array) -> tuple[Any, Array]:
        def loss(weights: Any) -> Array:
            return jnp.mean(forward(weights, *batch) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradients), value

    return step


def within(operation: Callable[[Array], Array]) -> tuple[Callable[..., Any], tuple[Any], tuple[Any]]:
    """The step whose hidden activations [batch, length, hidden] go through `operation`."""

    def forward(weights: Any, x: Array) -> Array:
        return operation(x @ weights["w"]) @ weights["v"]

    weights = {"w": floats(WIDTH, HIDDEN), "v": floats(HIDDEN, WIDTH)}
    return trained(forward), (weights,), (floats(BATCH, LENGTH, WIDTH),)


def normalise(h: Array) -> Array:
    return (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)


def marked(h: Array) -> Array:
    """A reduction that no collective completes, along the sequence."""
    bits = lax.reduce((h > 0).astype(jnp.int32), jnp.int32(0), lax.bitwise_or, (1,))
    return h * bits[:, None].astype(h.dtype)


def through_heads(h: Array) -> Array:
    """A split whose major factor carries the sharding, and the merge back."""
    heads = h.reshape(BATCH, LENGTH, 4, HIDDEN // 4)
    return jax.nn.softmax(heads, axis=-1).reshape(h.shape)


def attention(h: Array) -> Array:
    """Two products with batch dims, transposed between."""
    heads = h.reshape(BATCH, LENGTH, 4, HIDDEN // 4).transpose(0, 2, 1, 3)
    scores = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", heads, heads))
    return jnp.einsum("bhqk,bhkd->bqhd", scores, heads).reshape(h.shape)


def scanned(h: Array) -> Array:
    return lax.scan(lambda carry, _: (jnp.tanh(carry), None), h, length=3)[0]


def walked(h: Array) -> Array:
    """A loop that takes one position after the other and stacks its results up."""
    return lax.scan(lambda carry, row: (carry + row, jnp.sin(carry)), h[:, 0] * 0, h.swapaxes(0, 1))[1].swapaxes(0, 1)


def masked(h: Array) -> Array:
    places = jnp.arange(LENGTH)
    return jnp.where(places[:, None] < lax.broadcasted_iota(jnp.int32, (LENGTH, HIDDEN), 1), h, 0.0)


def dropped(h: Array) -> Array:
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, h.shape), h / 0.9, 0.0)


def dropped_by_generator(h: Array) -> Array:
    """Random bits by the operation that makes them, not by arithmetic on counters."""
    return jnp.where(jax.random.bernoulli(jax.random.key(0, impl="rbg"), 0.9, h.shape), h / 0.9, 0.0)


def every_function(h: Array) -> Array:
    """Elementwise functions of one operand, of two, and of three."""
    one = (jnp.arctan, jax.lax.erf, jnp.log1p, jnp.expm1, jax.nn.sigmoid, jnp.cbrt, jnp.sinh, lax.lgamma, jnp.round)
    bounded = jnp.clip(jnp.abs(h), 0.1, 0.9)
    total = sum(function(bounded) for function in one)
    return lax.reduce_precision(jnp.arctan2(total, bounded) ** bounded, 8, 7)


def solved(h: Array) -> Array:
    """A system of equations for each example and head."""
    heads = h.reshape(BATCH, LENGTH, 4, HIDDEN // 4).transpose(0, 2, 1, 3)
    lower = jnp.tril(heads @ heads.swapaxes(-1, -2)) + 10 * jnp.eye(LENGTH)
    solution = lax.linalg.triangular_solve(lower, heads, left_side=True, lower=True)
    return solution.transpose(0, 2, 1, 3).reshape(h.shape)


def rounded(h: Array) -> Array:
    """The lowest bits cut off."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(h, jnp.int32) & -256, jnp.float32) + h


def recomputed(h: Array) -> Array:
    return jax.checkpoint(lambda h: jnp.sin(jnp.tanh(h)))(h)


def decomposed(h: Array) -> Array:
    """A library call (LAPACK) batched over batch and heads."""
    heads = h.reshape(BATCH, LENGTH, 4, HIDDEN // 4).transpose(0, 2, 1, 3)
    factors = lax.linalg.cholesky(heads @ heads.swapaxes(-1, -2) + 10 * jnp.eye(LENGTH), symmetrize_input=False)
    return (factors @ heads).transpose(0, 2, 1, 3).reshape(h.shape)


OPERATIONS: dict[str, Callable[[Array], Array]] = {
    "elementwise": jnp.tanh,
    "elementwise, every function": every_function,
    "dot_general": attention,
    "reduce, sum": normalise,
    "reduce, maximum": lambda h: h - h.max(-1, keepdims=True),
    "reduce, bits of integers": marked,
    "broadcast_in_dim": lambda h: h + jnp.ones((LENGTH, 1)),
    "reshape": through_heads,
    "transpose": lambda h: jnp.transpose(jnp.cos(jnp.transpose(h, (2, 1, 0))), (2, 1, 0)),
    "concatenate": lambda h: jnp.concatenate([h, jnp.sin(h)], axis=1),
    "slice": lambda h: h[:, 2:6],
    "pad": lambda h: jnp.pad(h, ((0, 0), (1, 2), (0, 0))),
    "dynamic_slice": lambda h: lax.dynamic_slice_in_dim(h, jnp.int32(h.size) // BATCH % 5, 4, axis=1),
    "dynamic_update_slice": lambda h: lax.dynamic_update_slice_in_dim(h, jnp.sin(h[:, :2]), 3, axis=1),
    "iota": masked,
    "reverse": lambda h: jnp.flip(jnp.cos(h), axis=1) + h,
    "sort": lambda h: jnp.sort(h, axis=1),
    "cumsum": lambda h: jnp.cumsum(h, axis=1),
    "reduce_window": lambda h: lax.reduce_window(h, 0.0, lax.add, (1, 2, 1), (1, 2, 1), "VALID"),
    "select_and_scatter": lambda h: lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID"),
    "rng": dropped,
    "rng_bit_generator": dropped_by_generator,
    "while": scanned,
    "while over a dim": walked,
    "case": lambda h: lax.cond(jnp.sum(h) > 0, jnp.sin, jnp.cos, h),
    "custom_call": decomposed,
    "triangular_solve": solved,
    "optimization_barrier": recomputed,
    "bitcast_convert": rounded,
}


def embedded() -> tuple[Callable[..., Any], tuple[Any], tuple[Any]]:
    """Gather and scatter: rows of a table that is sharded by rows, and a label picked from sharded logits."""

    def step(weights: Any, ids: Array, labels: Array) -> tuple[Any, Array]:
        def loss(weights: Any) -> Array:
            logits = weights["table"][ids] @ weights["table"].T
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
            return -picked.mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradients), value

    return step, ({"table": floats(HIDDEN, WIDTH)},), (ints(BATCH, LENGTH), ints(BATCH, LENGTH))


def convolved(groups: int = 1) -> tuple[Callable[..., Any], tuple[Any], tuple[Any]]:
    """A convolution to hidden features, a second one (depthwise where `groups` says so), and a third one back."""

    def convolution(x: Array, kernel: Array, groups: int = 1) -> Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    def forward(weights: Any, x: Array) -> Array:
        h = jnp.tanh(convolution(x, weights["w"]))
        if groups > 1:
            h = convolution(h, weights["u"], groups)
        return convolution(h, weights["v"])

    weights = {"w": floats(3, 3, 4, HIDDEN), "v": floats(3, 3, HIDDEN, 4)}
    if groups > 1:
        weights["u"] = floats(3, 3, 1, HIDDEN)
    return trained(forward), (weights,), (floats(BATCH, 8, 8, 4),)


_BATCH, _HIDDEN = ("1", 0, "data"), ("0/w", 1, "model")
RULE_CASES: dict[str, tuple[Any, list[tuple[str, int, str]]]] = {
    **{name: (within(operation), [_BATCH, _HIDDEN]) for name, operation in OPERATIONS.items()},
    "gather and scatter": (embedded(), [_BATCH, ("0/table", 0, "model")]),
    "convolution": (convolved(), [_BATCH, ("0/w", 3, "model")]),
    "convolution, depthwise": (convolved(HIDDEN), [_BATCH, ("0/w", 3, "model")]),
}
