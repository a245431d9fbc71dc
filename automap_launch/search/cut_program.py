"""The best cuts of one case, exactly: a dynamic program over blocks bounds them, a search by bound finds them.

A *case* is a plan without its cuts. A step takes at least as long as any path through the tasks of one of its stages
(`critical_paths.py`), and as the way to a stage and its time over each micro-batch: for stage s with m micro-batches,
seconds f, b, w of a micro-batch's forward, backward and weight part, t = f + b + w, and x of a message, m t_s and the
way through the stages before it (for `gpipe` and `1f1b` there and back, sum of t + 2x; for `zero_bubble` one way, sum
of f + x).

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
from automap_launch.plan.timeline import in_flight
from automap_launch.search.critical_paths import least_seconds_of_runs, sent_seconds

Array = npt.NDArray[np.float64]

# Plans that are timed together: at first few, so that a good one bounds the others.
_FIRST_BATCH, _BATCH = 16, 512


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of runs of blocks as stages; [stage, first block, end].

    Attributes:
      own: of the step, by paths through a run that is stage s; infinite where it does not fit.
      busy: m t of a run. way: what it adds to the way of the stages after it.
    """

    own: Array
    busy: Array
    way: Array


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
        self._bounds = bounds_of(costs, stages, schedule, memory_limit)
        self._rest_own, self._rest_way = _least_rest(self._bounds)

    @property
    def lower_bound(self) -> float:
        """No plan of the case takes less; infinite where none fits."""
        return float(max(self._rest_own[0, 0], self._rest_way[0, 0]))

    def best(self, below: float, most: float = math.inf, check: Callable[[], None] = lambda: None) -> BestCuts:
        """The best plan that takes less than `below` seconds.

        Args:
          most: so many plans are timed, or a few more, before it gives up.
          check: called between batches of plans.
        """
        if self.stages == 1:
            return self._single(below)
        # (bound, cuts, what the stages so far cost at least, the way through them)
        open_: list[tuple[float, tuple[int, ...], float, float]] = [(self.lower_bound, (), 0.0, 0.0)]
        best, cuts, timed = below, None, 0
        while open_ and open_[0][0] < best and timed < most:
            check()
            whole = self._next_whole(open_, best, _FIRST_BATCH + timed)
            if whole:
                seconds = self._timed(np.array(whole, np.int64))
                timed += len(whole)
                least = int(seconds.argmin())
                if seconds[least] < best:
                    best, cuts = float(seconds[least]), whole[least]
        bound = min(open_[0][0], best) if open_ else best
        return BestCuts(cuts, best, timed, bound)

    def _next_whole(
        self, open_: list[tuple[float, tuple[int, ...], float, float]], below: float, count: int
    ) -> list[tuple[int, ...]]:
        """The next plans in the order of their bounds, at most `count` and _BATCH; extends cuts on the way to them."""
        blocks, bounds = self.costs.blocks, self._bounds
        whole: list[tuple[int, ...]] = []
        while open_ and open_[0][0] < below and len(whole) < min(count, _BATCH):
            _, prefix, so_far, way = heapq.heappop(open_)
            stage, first = len(prefix), prefix[-1] if prefix else 0
            if stage == self.stages - 1:
                whole.append(prefix)
                continue
            ends = np.arange(first + 1, blocks - (self.stages - stage - 1) + 1)
            reached = np.maximum(so_far, np.maximum(bounds.own[stage, first, ends], way + bounds.busy[first, ends]))
            onward = way + bounds.way[stage, first, ends]
            rest = np.maximum(self._rest_own[stage + 1, ends], onward + self._rest_way[stage + 1, ends])
            total = np.maximum(reached, rest)
            for k in np.flatnonzero(total < below).tolist():
                extended = (*prefix, int(ends[k]))
                heapq.heappush(open_, (float(total[k]), extended, float(reached[k]), float(onward[k])))
        return whole

    def _single(self, below: float) -> BestCuts:
        if not np.isfinite(self.lower_bound) or self.lower_bound >= below:
            return BestCuts(None, below, 0, below)
        seconds = float(self._timed(np.zeros((1, 0), np.int64))[0])
        return BestCuts((), seconds, 1, seconds) if seconds < below else BestCuts(None, below, 1, below)

    def _timed(self, cuts: npt.NDArray[np.int64]) -> Array:
        """float64[plans]: seconds; infinite where a plan does not fit. Args: cuts: int64[plans, stages - 1]."""
        found = self.costs.pipelines(self.schedule, cuts)
        seconds: Array = np.where(found.fits(self._memory_limit), found.step_seconds, np.inf)
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
    fits: npt.NDArray[np.bool_] = possible & (runs.memory(flying) <= memory_limit)
    return fits


def bounds_of(costs: BlockCosts, stages: int, schedule: Schedule, memory_limit: float) -> Bounds:
    """The bounds of all runs of a case."""
    runs = costs.every_run()
    possible = fitting_runs(costs, runs, stages, schedule, memory_limit + ROUNDED_BYTES)
    some = np.isfinite(runs.forward)
    runs = RunCosts(**{f.name: np.where(some, getattr(runs, f.name), 0.0) for f in fields(RunCosts)})
    own = least_seconds_of_runs(costs, runs, stages, schedule)
    total = runs.forward + runs.backward + runs.weight
    sent = sent_seconds(costs, stages)[:, None]
    way = runs.forward + sent if schedule == "zero_bubble" else total + 2 * sent
    return Bounds(np.where(possible, own, np.inf), costs.micro_batches * total, way)


def _least_rest(bounds: Bounds) -> tuple[Array, Array]:
    """float64[stages + 1, blocks + 1] each: the least of `own`, and of way and busy, over all cuts from a block on."""
    stages, blocks = bounds.own.shape[0], bounds.own.shape[1]
    own = np.full((stages + 1, blocks + 1), np.inf)
    way = np.full((stages + 1, blocks + 1), np.inf)
    own[stages, blocks] = way[stages, blocks] = 0.0
    for stage in reversed(range(stages)):
        fits = np.isfinite(bounds.own[stage])
        own[stage, :blocks] = np.maximum(bounds.own[stage], own[stage + 1]).min(axis=1)
        reaching = np.maximum(bounds.busy, bounds.way[stage] + way[stage + 1])
        way[stage, :blocks] = np.where(fits, reaching, np.inf).min(axis=1)
    return own, way
