"""`GroupBounds`: lower bounds of a plan's cost from which groups are sharded, before its cuts are known.

What a step costs is a sum over sets of operations that touch the same groups. For each set the cost of every subset of
its groups is known, so a plan of which only some groups are decided costs at least what each set costs at best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Masks = npt.NDArray[np.int64]

# Rows of a table: seconds of a whole step, seconds of one micro-batch, bytes held whatever the schedule.
WHOLE, MICRO, HELD_BYTES = range(3)
ROWS = 3


@dataclass(frozen=True)
class GroupBounds:
    """Bounds in one case: a mesh, a number of micro-batches, a storage.

    Attributes:
      sets: ids of the groups that each set of operations touches and that may be sharded.
      tables: by set float64[ROWS, 2 ** groups]: all blocks together, on one stage's devices, take at least the sum over
        sets, each at the subset of its groups that is sharded (bit i: the set's i-th group). Stages that share them out
        take no less together.
    """

    sets: tuple[tuple[int, ...], ...]
    tables: tuple[Array, ...]

    def level(self, decided: Sequence[int]) -> BoundLevel:
        """Bounds when only the groups `decided` are; the others are at best."""
        constant = np.zeros(ROWS)
        place = {group: bit for bit, group in enumerate(decided)}
        joined: dict[tuple[int, ...], Array] = {}
        for groups, table in zip(self.sets, self.tables, strict=True):
            least = table
            for bit in reversed(range(len(groups))):
                if groups[bit] not in place:
                    least = least.reshape(ROWS, -1, 2, 1 << bit).min(axis=2).reshape(ROWS, -1)
            bits = tuple(place[g] for g in groups if g in place)
            if bits:
                joined[bits] = joined[bits] + least if bits in joined else least
            else:
                constant += least[:, 0]
        return BoundLevel(constant, tuple(joined.items()))


@dataclass(frozen=True)
class BoundLevel:
    """Bounds when some groups are decided. `tables`: (bits of a mask, float64[ROWS, 2 ** bits])."""

    constant: Array
    tables: tuple[tuple[tuple[int, ...], Array], ...]

    def of(self, masks: Masks) -> Array:
        """float64[ROWS, masks]; bit i of a mask is the i-th decided group."""
        total = np.repeat(self.constant[:, None], len(masks), axis=1)
        for bits, table in self.tables:
            index = np.zeros(len(masks), np.int64)
            for k, bit in enumerate(bits):
                index |= (masks >> bit & 1) << k
            total += table[:, index]
        return total
