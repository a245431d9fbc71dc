"""`Quantity`: what one device has of a whole, as the whole and what divides it.

The sizes of a mesh are put in later, so that one quantity stands for all meshes and numbers of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from automap_launch.plan.layout import Spec
from automap_launch.plan.sharding import DATA, MODEL

Array = npt.NDArray[np.float64]

# What divides a quantity, as one number: the data axis (twice where a result that it shards is cut again), the model
# axis and the micro-batches, each with its place.
_TWICE = 3
_OF_AXIS = {DATA: 1, MODEL: _TWICE}
_OF_MICRO = 2 * _TWICE
DIVISORS = 2 * _OF_MICRO


class Quantity(NamedTuple):
    """`amount` of the whole; `over`: what divides it, an index in `divisors`."""

    amount: float
    over: int = 0

    def at(self, divided_by: Array) -> float:
        """What one device has. Args: divided_by: of `divisors`."""
        return float(self.amount / divided_by[self.over])


def over(*, data: bool = False, micro: bool = False) -> int:
    """What divides: the sum of two such numbers stands for both."""
    return _OF_AXIS[DATA] * data + _OF_MICRO * micro


def over_spec(spec: Spec, without: str | None = None) -> int:
    """The axes of a sharding, but for `without`, as what divides a tensor."""
    return sum(_OF_AXIS[axis] for axis in spec if axis is not None and axis != without)


def divisors(mesh: Mapping[str, int], micro_batches: int = 1) -> Array:
    """float64[DIVISORS]: by how much each combination divides."""
    data = np.array([1.0, mesh[DATA], mesh[DATA] ** 2])
    return np.concatenate([data * model * micro for micro in (1, micro_batches) for model in (1, mesh[MODEL])])
