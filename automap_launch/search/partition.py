"""A program's blocks as the cuts see them: work, memory and boundaries, balanced cuts, and candidates for the next one.

Cuts are only taken near balanced positions (Auto-MAP, task-specific pruning): what balances the work left, what
balances the memory left, a stage of a single block, and the cheapest boundary around the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from automap_launch.program.batch_analysis import Block

# How far from the balance of work the cheapest boundary is looked for, in blocks.
_BOUNDARY_WINDOW = 6
_MEMORY_WINDOW = 1


class Partition:
    """Where stages may begin.

    Args:
      window: candidates of a cut lie so many blocks around the balance of work, at most; None: anywhere.

    Attributes:
      blocks: how many. work, memory: float64[blocks + 1], running shares of the whole, from 0 to 1.
      boundary: float64[blocks], bytes that leave each block, as shares of the largest.
    """

    def __init__(self, blocks: Sequence[Block], window: int | None) -> None:
        self.blocks = len(blocks)
        self.window = window
        self.work = _running([b.flops + b.backward_flops for b in blocks])
        self.memory = _running([b.parameter_bytes + b.state_bytes + b.residual_bytes for b in blocks])
        sizes = np.array([float(b.boundary_bytes) for b in blocks])
        self.boundary: npt.NDArray[np.float64] = sizes / max(sizes.max(initial=0.0), 1.0)
        self.balanced = lru_cache(maxsize=None)(self._balanced)
        self.candidates = lru_cache(maxsize=None)(self._candidates)

    def cut_sets(self, stages: int) -> int:
        """How many ways there are to cut the blocks into so many stages."""
        return math.comb(max(self.blocks - 1, 0), stages - 1)

    def _balanced(self, cuts: tuple[int, ...], stages: int, memory: bool = False) -> tuple[int, ...]:
        """`cuts` and the rest of them, such that each stage has its share of what is left (of memory where asked)."""
        running = self.memory if memory else self.work
        while len(cuts) < stages - 1:
            left = stages - len(cuts)
            cuts = (*cuts, self._clip(self._balance(running, cuts, left), cuts, left))
        return cuts

    def _candidates(self, cuts: tuple[int, ...], stages: int) -> tuple[int, ...]:
        """Blocks at which the next stage may begin, ascending."""
        start, left = cuts[-1] if cuts else 0, stages - len(cuts)
        first, last = start + 1, self.blocks - (left - 1)
        if self.window is None:
            return tuple(range(first, last + 1))
        centre = self._balance(self.work, cuts, left)
        by_memory = self._balance(self.memory, cuts, left)
        around = range(max(first, centre - _BOUNDARY_WINDOW), min(last, centre + _BOUNDARY_WINDOW) + 1)
        found = {
            first,
            *range(centre - self.window, centre + self.window + 1),
            *range(by_memory - _MEMORY_WINDOW, by_memory + _MEMORY_WINDOW + 1),
            *([min(around, key=lambda cut: (self.boundary[cut - 1], abs(cut - centre)))] if around else []),
        }
        return tuple(sorted({self._clip(cut, cuts, left) for cut in found}))

    def _balance(self, running: npt.NDArray[np.float64], cuts: tuple[int, ...], left: int) -> int:
        """The block boundary nearest to where the next stage has 1 / left of what is left."""
        start = cuts[-1] if cuts else 0
        target = running[start] + (running[-1] - running[start]) / left
        after = int(np.searchsorted(running, target))
        before = max(after - 1, 0)
        return after if running[min(after, self.blocks)] - target <= target - running[before] else before

    def _clip(self, cut: int, cuts: tuple[int, ...], left: int) -> int:
        start = cuts[-1] if cuts else 0
        return min(max(cut, start + 1), self.blocks - (left - 1))


def _running(values: Sequence[float]) -> npt.NDArray[np.float64]:
    sums = np.concatenate([np.zeros(1), np.cumsum(np.array(values, dtype=np.float64))])
    running: npt.NDArray[np.float64] = sums / sums[-1] if sums[-1] > 0 else np.linspace(0, 1, len(sums))
    return running
