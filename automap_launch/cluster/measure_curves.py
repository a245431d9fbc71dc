"""The long measurement behind `mode=calibrate`: times by shape and by size, with all devices busy. See `measure.py`.

Everything is timed as a chain inside one call, so that what a call costs is not in it, and each link of a chain needs
the one before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.cluster.curves import KINDS, CollectiveCurve, Curves, Kind, ProductCurve
from automap_launch.cluster.timing import seconds_of_call

_AXES = ("groups", "members")
_BATCHES = (1, 16)
# Matrices' widths: from those of a small head to those that fill a device.
_SIZES = {"cpu": (16, 128, 1024), "gpu": (64, 512, 4096), "tpu": (64, 512, 4096)}
_DTYPES = {
    "cpu": ("float32", "bfloat16"),
    "gpu": ("float32", "bfloat16", "float16"),
    "tpu": ("float32", "bfloat16"),
}
# Bytes of a collective, and of the traffic of an elementwise operation.
_MESSAGES = {"cpu": (2**10, 2**16, 2**18, 2**20, 2**23), "gpu": (2**10, 2**16, 2**20, 2**24, 2**28)}
_TRAFFIC = {"cpu": tuple(2**n for n in range(14, 25, 2)), "gpu": tuple(2**n for n in range(16, 31, 2))}
# Width of the square product between two collectives.
_BETWEEN = {"cpu": 192, "gpu": 2048}
# A product that would take longer is not run: it is scaled up from a smaller one.
_LONGEST_SECONDS = 0.1
_LINKS = 8
_SECONDS_EACH = 0.05


def measure_curves(devices: list[Any], op_seconds: float, alone_speedup: float) -> dict[str, Any]:
    """Curves of the devices as a plain record (`Curves`), each measured with all of them busy."""
    kind = devices[0].platform
    mesh = Mesh(np.array(devices)[None], _AXES)
    traffic = [(size, _traffic_seconds(mesh, size)) for size in _of(_TRAFFIC, kind)]
    # Noise must not make more bytes cheaper than fewer.
    rising = list(itertools.accumulate((seconds for _, seconds in traffic), lambda a, b: max(a * 1.001, b)))
    curves = Curves(
        op_seconds=op_seconds,
        alone_speedup=alone_speedup,
        products=tuple(_products(mesh, dtype, op_seconds) for dtype in _of(_DTYPES, kind)),
        traffic_bytes=tuple(size for size, _ in traffic),
        traffic_seconds=tuple(rising),
        transcendental=_transcendental_rate(mesh),
        collectives=tuple(_collectives(devices, _of(_MESSAGES, kind))),
    )
    return asdict(curves)


def _of(table: dict[str, Any], kind: str) -> Any:
    """The entry of a platform; a TPU is measured as a GPU where it has none of its own."""
    return table[kind if kind in table else "gpu"]


# Products


def _products(mesh: Mesh, dtype: str, op_seconds: float) -> ProductCurve:
    sizes = _of(_SIZES, mesh.devices.flat[0].platform)
    known: dict[tuple[int, ...], float] = {}
    shapes = itertools.product(_BATCHES, sizes, sizes, sizes)
    for shape in sorted(shapes, key=math.prod):
        known[shape] = _product_seconds(mesh, dtype, shape, known, op_seconds)
    in_order = tuple(known[shape] for shape in itertools.product(_BATCHES, sizes, sizes, sizes))
    return ProductCurve(dtype, _BATCHES, sizes, in_order)


def _product_seconds(
    mesh: Mesh, dtype: str, shape: tuple[int, ...], known: dict[tuple[int, ...], float], op_seconds: float
) -> float:
    """Seconds of one product; of one that would take too long, in proportion to the largest known one inside it."""
    inside = [s for s in known if all(a <= b for a, b in zip(s, shape, strict=True))]
    if inside:
        largest = max(inside, key=math.prod)
        expected = known[largest] * math.prod(shape) / math.prod(largest)
        if expected > _LONGEST_SECONDS:
            return expected
    batch, m, n, k = shape

    def link(left: Any, right: Any) -> tuple[Any, Any]:
        result = jnp.einsum("bmk,bkn->bmn", left, right)
        # The next product must wait for this one, at the price of a small operation.
        first = (result[:1, :1, :1] * 0 + 1).astype(left.dtype)
        return jax.lax.dynamic_update_slice(left, first, (0, 0, 0)), right

    arrays = [_ones(mesh, (batch, m, k), dtype), _ones(mesh, (batch, k, n), dtype)]
    seconds = seconds_of_call(_chain(mesh, link), arrays, _SECONDS_EACH) / _LINKS
    # More than half of a link is the product.
    return max(seconds - op_seconds, seconds / 2)


# Elementwise operations


def _traffic_seconds(mesh: Mesh, size: int) -> float:
    """Seconds of an elementwise operation of two operands, the data being what was written just before."""

    def link(x: Any, y: Any) -> tuple[Any, Any]:
        return y * 0.5, jax.lax.optimization_barrier(x * 0.5 + y * 0.25)

    # Three arrays cross memory for the second result, and two for the first.
    arrays = [_ones(mesh, (max(size // 4 // 5, 1),), "float32") for _ in range(2)]
    return seconds_of_call(_chain(mesh, link), arrays, _SECONDS_EACH) / _LINKS


def _transcendental_rate(mesh: Mesh) -> float:
    """Exponentials a second of a device. A logarithm, a hyperbolic tangent cost about as much."""
    count, fused = 2**14, 4

    def link(x: Any) -> tuple[Any, ...]:
        for _ in range(fused):
            x = jnp.exp(x * -0.5)
        return (jax.lax.optimization_barrier(x),)

    return count * fused * _LINKS / seconds_of_call(_chain(mesh, link), [_ones(mesh, (count,), "float32")], 0.1)


# Collectives


def _collectives(devices: list[Any], messages: tuple[int, ...]) -> list[CollectiveCurve]:
    found = []
    for members in (n for n in range(2, len(devices) + 1) if len(devices) % n == 0):
        mesh = Mesh(np.array(devices).reshape(-1, members), _AXES)
        for kind in KINDS:
            points = [(size, _collective_seconds(mesh, kind, size)) for size in messages]
            alpha, beta = fit_alpha_beta(points)
            found.append(CollectiveCurve(kind, members, alpha, beta))
    return found


def fit_alpha_beta(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Alpha and beta, neither below 0, with the least squares of relative errors over (bytes, seconds) points."""
    sizes, seconds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    ones = np.ones(len(points))
    candidates = [np.linalg.lstsq(columns, ones, rcond=None)[0]]
    # Where one of the two comes out below 0 the best is at its edge.
    for only in range(2):
        edge = np.zeros(2)
        edge[only] = columns[:, only].sum() / (columns[:, only] ** 2).sum()
        candidates.append(edge)
    allowed = [c for c in candidates if c.min() >= 0]
    alpha, beta = min(allowed, key=lambda c: float(((columns @ c - ones) ** 2).sum()))
    return float(alpha), float(beta)


def _collective_seconds(mesh: Mesh, kind: Kind, size: int) -> float:
    """Seconds of one collective over `members`, all groups at once. Size as `cluster/collectives.py` defines it.

    It is measured between products, as it stands in a step, and the products' own time is taken off: devices do not
    come to a collective at the same moment, least of all those that share cores, and what they wait for each other is
    part of its price.
    """
    members = mesh.shape["members"]
    count = max(size // 4 // members, 1) * members
    width = _of(_BETWEEN, mesh.devices.flat[0].platform)

    def link(x: Any, y: Any, communicate: bool) -> tuple[Any, ...]:
        product = y @ y
        ready = jax.lax.dynamic_update_slice(x, product[0, :1] * 0 + 1, (0,))
        moved = _collective(kind, ready, members) if communicate else ready * 0.5
        return moved, jax.lax.dynamic_update_slice(y, moved[:1, None] * 0 + 1 / width, (0, 0))

    arrays = [_ones(mesh, (count,), "float32"), _ones(mesh, (width, width), "float32")]
    with_it, without = (
        seconds_of_call(_chain(mesh, partial(link, communicate=communicate)), arrays, _SECONDS_EACH) / _LINKS
        for communicate in (True, False)
    )
    # Noise must not make it free.
    return max(with_it - without, with_it / 100)


def _collective(kind: Kind, x: Any, members: int) -> Any:
    """One collective over the axis `members`, its result scaled and of the shape of `x`."""
    if kind == "all_reduce":
        return jax.lax.psum(x, "members") * 0.1
    if kind == "all_gather":
        return jax.lax.all_gather(x[: x.size // members], "members", tiled=True) * 0.5
    if kind == "reduce_scatter":
        part = jax.lax.psum_scatter(x, "members", tiled=True) * 0.1
        return jax.lax.dynamic_update_slice(x, part, (0,))
    if kind == "all_to_all":
        return jax.lax.all_to_all(x, "members", 0, 0, tiled=True) * 0.5
    return jax.lax.ppermute(x, "members", [(i, (i + 1) % members) for i in range(members)]) * 0.5


def _chain(mesh: Mesh, link: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """`link` on every device's own arrays, its results its next arguments, `_LINKS` times in one call."""
    spec = PartitionSpec(_AXES)

    def body(*stacked: Any) -> tuple[Any, ...]:
        own: tuple[Any, ...] = tuple(x[0] for x in stacked)
        for _ in range(_LINKS):
            own = link(*own)
        return tuple(x[None] for x in own)

    chained: Callable[..., Any] = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    return chained


def _ones(mesh: Mesh, shape: tuple[int, ...], dtype: str) -> Any:
    """Ones of `shape` on each device."""
    sharding = NamedSharding(mesh, PartitionSpec(_AXES))
    return jax.jit(lambda: jnp.ones((mesh.size, *shape), dtype), out_shardings=sharding)()
