"""`Curves`: what one rate a device cannot say. Pure data, measured by `calibrate`; all of it optional.

All of it was measured while every device of the machine did the same, so devices that share something (virtual CPU
devices share cores and caches) have their share of it only.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]

KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


@dataclass(frozen=True)
class ProductCurve:
    """Seconds of matrix products [batch, m, k] x [batch, k, n] of one dtype, one operation each.

    `sizes`: of m, n and k alike, ascending. `seconds`: for each batch, m, n and k, the last one fastest.
    """

    dtype: str
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        for what, values in (("batches", self.batches), ("sizes", self.sizes)):
            _check_ascending(f"{what} of products in {self.dtype}", values)
        expected = len(self.batches) * len(self.sizes) ** 3
        if len(self.seconds) != expected or min(self.seconds) <= 0:
            raise ValueError(
                f"products in {self.dtype} need {expected} seconds above 0 for {len(self.batches)} batches and "
                f"{len(self.sizes)} sizes, got {len(self.seconds)}"
            )

    def at(self, batch: float, m: float, n: float, k: float) -> float:
        """Seconds of a product: between points a power law in each size, above the last one in proportion.

        Below the first point a size counts as that point: what is that small costs no less.
        """
        scale, corners = 1.0, []
        for size, points in ((batch, self.batches), (m, self.sizes), (n, self.sizes), (k, self.sizes)):
            scale *= max(1.0, size / points[-1])
            low = min(max(bisect_right(points, size) - 1, 0), max(len(points) - 2, 0))
            if len(points) == 1:
                corners.append(((0, 1.0),))
                continue
            clamped = min(max(size, points[0]), points[-1])
            share = math.log(clamped / points[low]) / math.log(points[low + 1] / points[low])
            corners.append(((low, 1.0 - share), (low + 1, share)))  # type: ignore[arg-type]
        exponent = 0.0
        for places in itertools.product(*corners):
            weight = math.prod(share for _, share in places)
            if weight:
                exponent += weight * self._logarithms[self._index(*(place for place, _ in places))]
        return scale * math.exp(exponent)

    @cached_property
    def _logarithms(self) -> tuple[float, ...]:
        return tuple(math.log(seconds) for seconds in self.seconds)

    def _index(self, batch: int, m: int, n: int, k: int) -> int:
        width = len(self.sizes)
        return ((batch * width + m) * width + n) * width + k


@dataclass(frozen=True)
class CollectiveCurve:
    """Alpha and beta of one kind over groups of so many devices of a host, all groups busy.

    A collective whose size (as `cluster/collectives.py` defines it) is n bytes takes
    `alpha_s + n * beta_s_per_byte` seconds.
    """

    kind: Kind
    devices: int
    alpha_s: float
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        if self.devices < 2 or self.alpha_s < 0 or self.beta_s_per_byte < 0:
            raise ValueError(
                f"a {self.kind} is over 2 devices or more and has no alpha_s and beta_s_per_byte below 0, got {self}"
            )


@dataclass(frozen=True)
class Curves:
    """What calibration knows of a machine.

    Attributes:
      op_seconds: what every operation that is not fused into another costs on top of its work.
      alone_speedup: how much faster a device is when the others are idle. Above 1 where devices share something:
        virtual CPU devices share cores.
      products: matrix products by dtype.
      traffic_bytes, traffic_seconds: an elementwise operation that reads and writes so many bytes in all, ascending.
      transcendental: exponentials, logarithms and their like that a device computes in a second; null: not measured.
      collectives: by kind and number of devices.
    """

    op_seconds: float = 0.0
    alone_speedup: float = 1.0
    products: tuple[ProductCurve, ...] = ()
    traffic_bytes: tuple[int, ...] = ()
    traffic_seconds: tuple[float, ...] = ()
    transcendental: float | None = None
    collectives: tuple[CollectiveCurve, ...] = ()

    def __post_init__(self) -> None:
        if self.op_seconds < 0:
            raise ValueError(f"op_seconds is {self.op_seconds}: it must not be below 0")
        if self.alone_speedup < 1:
            raise ValueError(f"alone_speedup is {self.alone_speedup}: it must be at least 1")
        if self.transcendental is not None and self.transcendental <= 0:
            raise ValueError(f"transcendental is {self.transcendental}: it must be above 0")
        if len(self.traffic_bytes) != len(self.traffic_seconds):
            raise ValueError(
                f"traffic_bytes has {len(self.traffic_bytes)} points and traffic_seconds {len(self.traffic_seconds)}"
            )
        if self.traffic_bytes:
            _check_ascending("traffic_bytes", self.traffic_bytes)
            _check_ascending("traffic_seconds", self.traffic_seconds)
        for what, keys in (
            ("products", [curve.dtype for curve in self.products]),
            ("collectives", [(curve.kind, curve.devices) for curve in self.collectives]),
        ):
            if len(keys) != len(set(keys)):
                raise ValueError(f"{what} has two curves for the same thing: {keys}")

    def product(self, dtype: str) -> ProductCurve | None:
        """The products in `dtype`, where they were measured."""
        return next((curve for curve in self.products if curve.dtype == dtype), None)

    def collective(self, kind: Kind, devices: int) -> CollectiveCurve | None:
        """Collectives of a kind over so many devices, where they were measured."""
        return next((c for c in self.collectives if (c.kind, c.devices) == (kind, devices)), None)

    def traffic(self, size: float) -> float | None:
        """Seconds in which `size` bytes are read and written, between and beyond the points in proportion."""
        if not self.traffic_bytes:
            return None
        points, seconds = self.traffic_bytes, self.traffic_seconds
        if size <= points[0]:
            return seconds[0] * size / points[0]
        if size >= points[-1]:
            return seconds[-1] * size / points[-1]
        high = bisect_right(points, size)
        share = (size - points[high - 1]) / (points[high] - points[high - 1])
        return seconds[high - 1] + share * (seconds[high] - seconds[high - 1])


def _check_ascending(what: str, values: tuple[float, ...]) -> None:
    if not values or values[0] <= 0 or any(b <= a for a, b in itertools.pairwise(values)):
        raise ValueError(f"{what} must be above 0 and ascend, got {list(values)}")
