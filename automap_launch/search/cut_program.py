"""The best cuts of one case, exactly: a dynamic program over blocks bounds them, a search by bound finds them.

A *case* is a plan without its cuts. A step takes at least as long as any path through the tasks of one of its stages
(`critical_paths.py`). Some paths begin with the way there through the stages before it, or end with the way back
through them, or both: of cuts that are known, these are known, too.

Each is a maximum over stages of what a run of blocks costs, so its least value over all cuts of the blocks from i on is
a dynamic program over (i, s). Cuts are then extended from the left, least bound first, as long as the bound beats the
best plan known; whole ones are timed by the timeline itself. Nothing is left out, so the best of a case is proven.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import ROUNDED_BYTES, BlockCosts, RunCosts
from automap_launch.plan.decision import Schedule
from automap_launch.plan.timeline import StageSeconds, in_flight, step_seconds
from automap_launch.search.critical_paths import KINDS, RunBounds, bounds_of_runs, sent_seconds

Array = npt.NDArray[np.float64]

# Plans that are timed together: at first few, so that a good one bounds the others.
_FIRST_BATCH, _BATCH = 16, 512
# For each of them so many cuts are extended at most.
_PREFIXES = 8
# Cuts of the first stages: their bound; minus their number, so that of those with one bound the longest come first; the
# first blocks of the next stages; what the stages so far cost at least, the way there through them, and the way back.
_Open = tuple[float, int, tuple[int, ...], float, float, float]


@dataclass(frozen=True)
class BestCuts:
    """The best plan below the limit that was found.

    Attributes:
      cuts: None: there is none. seconds: of the plan, or the limit.
      timed: plans timed on the way. bound: no plan takes less; `seconds` where the search did not give up.
    """

    cuts: tuple[int, ...] | None
    seconds: float
    timed: int
    bound: float


class CutProgram:
    """All cuts of one case into `stages` stages under one schedule.

    Args:
      memory_limit: bytes that a plan may use on a device.
    """

    def __init__(self, costs: BlockCosts, stages: int, schedule: Schedule, memory_limit: float) -> None:
        self.costs = costs
        self.stages = stages
        self.schedule = schedule
        self._memory_limit = memory_limit
        runs = costs.every_run()
        fits = fitting_runs(costs, runs, stages, schedule, memory_limit + ROUNDED_BYTES)
        some = np.isfinite(runs.forward)
        self._runs = RunCosts(**{f.name: np.where(some, getattr(runs, f.name), 0.0) for f in fields(RunCosts)})
        self._sent = sent_seconds(costs, stages)
        self._bounds = bounds_of_runs(costs, self._runs, stages, schedule)
        self._bounds.joint[:, ~fits] = np.inf
        self._rest = _least_rest(self._bounds)

    @property
    def lower_bound(self) -> float:
        """No plan of the case takes less; infinite where none fits."""
        return float(self._rest[:, 0, 0].max())

    def best(self, below: float, most: float = math.inf, check: Callable[[], None] = lambda: None) -> BestCuts:
        """The best plan that takes less than `below` seconds.

        Args:
          most: so many cuts are looked at, or a few more, before it gives up.
          check: called between batches of plans.
        """
        if self.stages == 1:
            return self._single(below)
        open_: list[_Open] = [(self.lower_bound, 0, (), 0.0, 0.0, 0.0)]
        best, cuts, timed, looked_at = below, None, 0, 0
        while open_ and open_[0][0] < best and looked_at < most:
            check()
            whole, more = self._next_whole(open_, best, min(_FIRST_BATCH + timed, _BATCH))
            looked_at += more
            if whole:
                seconds = self._timed(np.array(whole, np.int64))
                timed += len(whole)
                least = int(seconds.argmin())
                if seconds[least] < best:
                    best, cuts = float(seconds[least]), whole[least]
        bound = min(open_[0][0], best) if open_ else best
        return BestCuts(cuts, best, timed, bound)

    def _next_whole(self, open_: list[_Open], below: float, count: int) -> tuple[list[tuple[int, ...]], int]:
        """At most `count` plans, the next in the order of their bounds, and how many cuts were extended or are whole;
        gives up when those are many more."""
        blocks, bounds = self.costs.blocks, self._bounds
        whole: list[tuple[int, ...]] = []
        looked_at = 0
        while open_ and open_[0][0] < below and len(whole) < count and looked_at < _PREFIXES * count:
            _, _, prefix, so_far, there, back = heapq.heappop(open_)
            looked_at += 1
            stage, first = len(prefix), prefix[-1] if prefix else 0
            if stage == self.stages - 1:
                whole.append(prefix)
                continue
            ends = slice(first + 1, blocks - (self.stages - stage - 1) + 1)
            way = np.maximum(there, bounds.before[first, ends])
            reached = np.maximum(so_far, _joined(way, back, bounds.joint[:, stage, first, ends]))
            way = way + bounds.there[stage, first, ends]
            way_back = np.maximum(back, bounds.after[stage, first, ends]) + bounds.back[stage, first, ends]
            total = np.maximum(reached, _joined(way, way_back, self._rest[:, stage + 1, ends]))
            keep = np.flatnonzero(total < below)
            columns = (total, reached, way, way_back)
            for k, bound, *state in zip(keep.tolist(), *(column[keep].tolist() for column in columns), strict=True):
                heapq.heappush(open_, (bound, -stage - 1, (*prefix, first + 1 + k), *state))
        return whole, looked_at

    def _single(self, below: float) -> BestCuts:
        if not np.isfinite(self.lower_bound) or self.lower_bound >= below:
            return BestCuts(None, below, 0, below)
        seconds = float(self._timed(np.zeros((1, 0), np.int64))[0])
        return BestCuts((), seconds, 1, seconds) if seconds < below else BestCuts(None, below, 1, below)

    def _timed(self, cuts: npt.NDArray[np.int64]) -> Array:
        """float64[plans]: seconds; infinite where a plan does not fit. Args: cuts: int64[plans, stages - 1]."""
        ends = np.full((len(cuts), 1), self.costs.blocks)
        run = np.concatenate([0 * ends, cuts], axis=1), np.concatenate([cuts, ends], axis=1)
        stage, runs, micro_batches = np.arange(self.stages), self._runs, self.costs.micro_batches
        before, after, moved = runs.before[run], runs.after[run], self.costs.lending(cuts)
        if moved is not None:
            before, after = before + moved.before, after + (moved.after + moved.update)
        stages = StageSeconds(
            runs.forward[run],
            runs.backward[run],
            runs.weight[run],
            before,
            after,
            self._sent[stage[:-1], cuts],
        )
        seconds = step_seconds(self.schedule, micro_batches, stages)
        flying = np.array(in_flight(self.schedule, self.stages, micro_batches))
        needed = runs.fixed[run] + flying * runs.residuals[run] + runs.working[run]
        if moved is not None:
            needed += moved.bytes
        # Within a few bytes of the limit the bytes decide that an estimate counts.
        close = np.flatnonzero(needed.max(axis=1) > self._memory_limit)
        if len(close):
            fits = self.costs.pipelines(self.schedule, cuts[close]).fits(self._memory_limit)
            seconds[close[~fits]] = np.inf
        return seconds


def fitting_runs(
    costs: BlockCosts, runs: RunCosts, stages: int, schedule: Schedule, memory_limit: float
) -> npt.NDArray[np.bool_]:
    """bool[stages, blocks, blocks + 1]: whether a run can be a stage and fits. Args: runs: `costs.every_run()`."""
    start, end = np.indices((costs.blocks, costs.blocks + 1))
    # A stage leaves a block for each of those before and after it.
    number = np.arange(stages)[:, None, None]
    possible = (end > start) & (start >= number) & (costs.blocks - end >= stages - 1 - number)
    possible &= (number > 0) | (start == 0)
    possible &= (number < stages - 1) | (end == costs.blocks)
    flying = np.array(in_flight(schedule, stages, costs.micro_batches))[:, None, None]
    needed = runs.memory(flying)
    if costs.stacks:
        needed = needed + costs.least_lending(start, end, stages)
    fits: npt.NDArray[np.bool_] = possible & (needed <= memory_limit)
    return fits


def _joined(there: Array, back: Array | float, joint: Array) -> Array:
    """float64[n]: the longest of the paths `joint`, float64[KINDS, n], with the ways that they begin and end with."""
    whole: Array = (KINDS[:, :1] * there + KINDS[:, 1:] * back + joint).max(axis=0)
    return whole


def _least_rest(bounds: RunBounds) -> Array:
    """float64[KINDS, stages + 1, blocks + 1]: the least of `joint`, with the ways through the stages before, over all
    cuts from a block on."""
    kinds, stages, blocks, _ = bounds.joint.shape
    rest = np.full((kinds, stages + 1, blocks + 1), np.inf)
    rest[:, stages, blocks] = 0.0
    for stage in reversed(range(stages)):
        way = KINDS[:, :1, None] * bounds.there[stage] + KINDS[:, 1:, None] * bounds.back[stage]
        joint = bounds.joint[:, stage]
        reaching = np.maximum(joint, way + rest[:, stage + 1, None])
        rest[:, stage, :blocks] = np.where(np.isfinite(joint), reaching, np.inf).min(axis=2)
    return rest
