"""How long a device works on one run of a row: by the cluster's curves where it was calibrated, else by the roofline.

Without curves a row takes max(flops / peak, bytes / bandwidth) and what an operation costs besides. Curves know more:

- A matrix product takes what one of its shape takes. A convolution counts as the product that it is (its windows'
  rows by its features), as libraries compute it.
- Memory traffic of the forward and backward parts is of tensors that were written a moment ago, some of them still in
  a cache: their curve goes by size. The update reads state that has not been touched for a whole step, and writes new
  arrays: it gets the memory's bandwidth.
- Exponentials and their like cost many operations each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster
from automap_launch.plan.layout import Spec
from automap_launch.plan.rows import PRODUCTS, Row, Tensor

Array = npt.NDArray[np.float64]

_TRANSCENDENTAL_NAMES = """atan2 cbrt cosine erf exponential exponential_minus_one log log_plus_one logistic power sine
    tan tanh"""
_TRANSCENDENTAL = frozenset(_TRANSCENDENTAL_NAMES.split())


@dataclass(frozen=True)
class Product:
    """A matrix product [batch, m, k] x [batch, k, n] as one device computes it."""

    batch: float
    m: float
    n: float
    k: float


def product_of(row: Row, result: Spec, mesh: Mapping[str, int], summed_over: int) -> Product | None:
    """The product that a row is on one device; None for a row that is none.

    Args:
      result: sharding of its result.
      summed_over: among how many devices the contracted dims are divided.
    """
    if row.name not in PRODUCTS or len(row.operands) < 2 or not row.flops:
        return None
    tensor = row.results[0]
    size = math.prod(tensor.shape)
    depth = row.flops / 2 / size
    if row.name == "convolution":
        # The features are one dim of the result, the last one in JAX's layouts; the rest are rows.
        return Product(1.0, _local(tensor, result, mesh, 0, -1), _local(tensor, result, mesh, -1), depth / summed_over)
    left, right = (math.prod(operand.shape) / depth for operand in row.operands[:2])
    batch = left * right / size
    first, second = _bounds(tensor, batch, left)
    return Product(
        _local(tensor, result, mesh, 0, first),
        _local(tensor, result, mesh, first, second),
        _local(tensor, result, mesh, second),
        depth / summed_over,
    )


def _bounds(tensor: Tensor, batch: float, rows: float) -> tuple[int, int]:
    """Where the dims of a product's result go on to rows, and to columns: batch dims stand first, then rows."""
    first = second = len(tensor.shape)
    so_far = 1.0
    for dim, size in enumerate(tensor.shape):
        if so_far >= batch and first > dim:
            first = dim
        if so_far >= rows and second > dim:
            second = dim
        so_far *= size
    return min(first, second), second


def _local(tensor: Tensor, spec: Spec, mesh: Mapping[str, int], start: int, end: int | None = None) -> float:
    """Elements along the dims from `start` up to `end` that one device has."""
    parts = math.prod(mesh[axis] for axis in spec[start:end] if axis is not None)
    return math.prod(tensor.shape[start:end]) / parts


class Speed:
    """Seconds of rows on the devices of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._device, self._curves = cluster.device, cluster.curves

    @property
    def measured(self) -> bool:
        """Whether products or memory traffic were measured: then no row is as the roofline says."""
        return bool(self._curves.products or self._curves.traffic_bytes)

    def rate(self, row: Row) -> float:
        """Floating-point operations of a row that a device does in a second."""
        rate = self._curves.transcendental if row.name in _TRANSCENDENTAL else None
        return self._peak(row.dtype) if rate is None else rate

    def overhead(self, row: Row) -> float:
        """Seconds of a row on top of its work."""
        return self._curves.op_seconds if any(t.counted for t in row.results) else 0.0

    def roofline(self, flops: Array, size: Array, copied: Array, rate: Array, overhead: Array) -> Array:
        """Seconds of many runs where no curve says more.

        Args: as `seconds`, `copying`, `rate` and `overhead` have them.
        """
        bandwidth = self._device.memory_bandwidth
        return np.maximum(size / bandwidth, flops / rate) + copied / bandwidth + overhead

    def copying(self, size: float) -> float:
        """Seconds of copies that put a tensor's dims in order, which read and write `size` bytes out of order: no
        cache helps."""
        return size / self._device.memory_bandwidth

    def seconds(self, row: Row, flops: float, size: float, product: Product | None) -> float:
        """Seconds of one run of a row, all devices being busy.

        Args:
          flops: floating-point operations of one device. size: bytes that cross its memory.
        """
        moving = None if row.part == "update" else self._curves.traffic(size)
        seconds = size / self._device.memory_bandwidth if moving is None else moving
        if product is not None and (measured := self._product_seconds(row.dtype, product)) is not None:
            return max(measured, seconds)
        return max(seconds, flops / self.rate(row)) + self.overhead(row)

    def _product_seconds(self, dtype: str, product: Product) -> float | None:
        """As measured in the dtype; else as measured in float32, by what the peaks say of the two."""
        curve, factor = self._curves.product(dtype), 1.0
        if curve is None:
            curve, factor = self._curves.product("float32"), self._peak("float32") / self._peak(dtype)
        if curve is None:
            return None
        return factor * curve.at(product.batch, product.m, product.n, product.k)

    def _peak(self, dtype: str) -> float:
        return self._device.peak_flops.get(dtype, self._device.peak_flops["float32"])
