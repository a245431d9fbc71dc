"""`BlockBounds`: costs by block that no plan undercuts of which only some groups are decided.

Tighter and dearer than `group_bounds.py`: what is known of each block bounds the stages that blocks make up, their
memory and the schedule's bubble as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import BlockCosts

Array = npt.NDArray[np.float64]

# Sums of the same numbers in another order differ by less; a bound must not be above them.
_SLACK = 1 - 1e-12


@dataclass(frozen=True)
class BlockBounds:
    """Bounds in one case: a mesh, a number of micro-batches, a storage.

    Attributes:
      sets: ids of the groups that each set of operations touches and that may be sharded.
      tables: by set float64[2 ** groups, blocks, columns]: what the set costs in each block, by the subset of its
        groups that is sharded (bit i: the set's i-th group).
      finish: from the sums of all sets, the groups that are sharded and those that are undecided, the costs of blocks
        with what is no sum over sets at its least.
    """

    sets: tuple[tuple[int, ...], ...]
    tables: tuple[Array, ...]
    finish: Callable[[Array, frozenset[int], frozenset[int]], BlockCosts]
    _least: dict[tuple[int, int, int], Array] = field(default_factory=dict, repr=False)

    def least(self, sharded: frozenset[int], undecided: frozenset[int]) -> BlockCosts:
        """Costs of which none is above that of any plan which shards `sharded` and any of the groups `undecided`.

        Groups are decided in their order: what a group is shards nothing else than the ones before it leave.
        """
        on, open_ = _bits(sharded), _bits(undecided)
        total = np.zeros(self.tables[0].shape[1:])
        for index, groups in enumerate(self.sets):
            own = _bits(groups)
            key = (index, on & own, open_ & own)
            if key not in self._least:
                self._least[key] = self._least_of(index, sharded, undecided)
            total += self._least[key]
        return self.finish(total * _SLACK, sharded, undecided)

    def _least_of(self, index: int, sharded: frozenset[int], undecided: frozenset[int]) -> Array:
        masks = np.arange(len(self.tables[index]))
        possible = np.ones(len(masks), dtype=bool)
        for bit, group in enumerate(self.sets[index]):
            if group not in undecided:
                possible &= (masks >> bit & 1) == (group in sharded)
        least: Array = self.tables[index][possible].min(axis=0)
        return least


def _bits(groups: Iterable[int]) -> int:
    return sum(1 << group for group in groups)
