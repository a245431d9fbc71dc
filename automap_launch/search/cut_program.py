"""The best cuts of one case, exactly: a dynamic program over blocks bounds them, a search by bound finds them.

A *case* is a plan without its cuts. For stage s of S with m micro-batches, seconds f, b, w of a micro-batch's forward,
backward and weight part, t = f + b + w, x of a message, and what comes once before and after, a step takes at least,
whatever else happens (see `plan/timeline.py` for the orders):

- alone: before_s + m t_s + after_s, for every s;
- reaching it: the way to stage s (for `gpipe` and `1f1b` there and back, sum of f + b + w + 2x over the stages before;
  for `zero_bubble` one way, sum of f + x) and m t_s;
- around it: in `gpipe` and `1f1b` one micro-batch goes through all stages and back; after it stage s has m - 1
  backward passes left, and of the forward ones those that it has not run ahead: m - min(S - s, m) in `1f1b`. In `gpipe`
  m - 1 of them have delayed it.
- `zero_bubble` likewise: the way there, from stage s to the end and back without weight parts, and then what stage s
  has left, weight parts of all micro-batches included.

Each is a maximum over stages of what a run of blocks costs, so its least value over all cuts of the blocks from i on is
a dynamic program over (i, s). Cuts are then extended from the left, least bound first, as long as the bound beats the
best plan known; whole ones are timed by the timeline itself. Nothing is left out, so the best of a case is proven.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import BlockCosts, crosses_hosts
from automap_launch.plan.decision import Schedule
from automap_launch.plan.timeline import in_flight

Array = npt.NDArray[np.float64]

_BATCH = 64


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of runs of blocks as stages; [stage, first block, end].

    Attributes:
      own: of the step, by a run that is stage s; infinite where it does not fit.
      busy: m t of a run. way: what it adds to the way of the stages after it.
    """

    own: Array
    busy: Array
    way: Array


@dataclass(frozen=True)
class BestCuts:
    """The cuts and seconds of the best plan below the limit; None: there is none. `timed`: plans timed on the way."""

    cuts: tuple[int, ...] | None
    seconds: float
    timed: int


class CutProgram:
    """All cuts of one case into `stages` stages under one schedule.

    Args:
      memory_limit: bytes that a plan may use on a device.
    """

    def __init__(self, costs: BlockCosts, stages: int, schedule: Schedule, memory_limit: float) -> None:
        self.costs = costs
        self.stages = stages
        self.schedule = schedule
        self._bounds = bounds_of(costs, stages, schedule, memory_limit)
        self._rest_own, self._rest_way = _least_rest(self._bounds)

    @property
    def lower_bound(self) -> float:
        """No plan of the case takes less; infinite where none fits."""
        return float(max(self._rest_own[0, 0], self._rest_way[0, 0]))

    def best(self, below: float) -> BestCuts:
        """The best plan that takes less than `below` seconds."""
        if self.stages == 1:
            return self._single(below)
        blocks, bounds = self.costs.blocks, self._bounds
        # (bound, cuts, first block of the next stage, what the stages so far cost at least, the way through them)
        open_: list[tuple[float, tuple[int, ...], float, float]] = [(self.lower_bound, (), 0.0, 0.0)]
        best, cuts, timed = below, None, 0
        whole: list[tuple[int, ...]] = []
        while open_ or whole:
            if len(whole) >= _BATCH or not open_ or open_[0][0] >= best:
                if not whole:
                    break
                seconds = self.costs.pipelines(self.schedule, np.array(whole, np.int64)).step_seconds
                timed += len(whole)
                least = int(seconds.argmin())
                if seconds[least] < best:
                    best, cuts = float(seconds[least]), whole[least]
                whole = []
                continue
            _, prefix, so_far, way = heapq.heappop(open_)
            stage, first = len(prefix), prefix[-1] if prefix else 0
            ends = np.arange(first + 1, blocks - (self.stages - stage - 1) + 1)
            reached = np.maximum(so_far, np.maximum(bounds.own[stage, first, ends], way + bounds.busy[first, ends]))
            onward = way + bounds.way[stage, first, ends]
            rest = np.maximum(self._rest_own[stage + 1, ends], onward + self._rest_way[stage + 1, ends])
            total = np.maximum(reached, rest)
            for k in np.flatnonzero(total < best).tolist():
                extended = (*prefix, int(ends[k]))
                if stage == self.stages - 2:
                    whole.append(extended)
                else:
                    heapq.heappush(open_, (float(total[k]), extended, float(reached[k]), float(onward[k])))
        return BestCuts(cuts, best, timed)

    def _single(self, below: float) -> BestCuts:
        if not np.isfinite(self.lower_bound) or self.lower_bound >= below:
            return BestCuts(None, below, 0)
        seconds = float(self.costs.pipelines(self.schedule, np.zeros((1, 0), np.int64)).step_seconds[0])
        return BestCuts((), seconds, 1) if seconds < below else BestCuts(None, below, 1)


def bounds_of(costs: BlockCosts, stages: int, schedule: Schedule, memory_limit: float) -> Bounds:
    """The bounds of all runs of a case."""
    runs, m = costs.every_run(), costs.micro_batches
    flying = np.array(in_flight(schedule, stages, m))[:, None, None]
    with np.errstate(invalid="ignore"):
        fits = runs.memory(flying) <= memory_limit
        total = runs.forward + runs.backward + runs.weight
        busy = m * total
        own = np.repeat((runs.before + busy + runs.after)[None], stages, axis=0)
        sent = np.zeros((stages, 1, costs.blocks + 1))  # of the message after a run, by stage and end
        for stage in range(stages - 1):
            far = crosses_hosts(costs.cluster, costs.devices, stage)
            sent[stage, 0, 1:] = costs.transfer_seconds(far)
        if schedule in ("gpipe", "1f1b"):
            way = total[None] + 2 * sent
            ahead = np.minimum(stages - np.arange(stages), m) if schedule == "1f1b" else np.ones(stages)
            left = (m - 1) * (runs.backward + runs.weight) + (m - ahead)[:, None, None] * runs.forward
            # The last stage goes from forward to backward at once, so nothing of it is left but whole micro-batches.
            around = float(total[np.arange(costs.blocks), np.arange(costs.blocks) + 1].sum()) + left
            own = np.maximum(own, around)
        else:
            way = runs.forward[None] + sent
            # Till the first backward pass of stage s is over, it has run min(S - s, m) forward passes at most.
            single = np.arange(costs.blocks)
            forward, backward = runs.forward[single, single + 1], runs.backward[single, single + 1]
            there = np.cumsum(forward) - forward
            back = (forward + backward)[::-1].cumsum()[::-1]
            ahead = np.minimum(stages - np.arange(stages), m)
            left = (m - 1) * runs.backward + m * runs.weight + (m - ahead)[:, None, None] * runs.forward
            own = np.maximum(own, (there + back)[:, None] + left + runs.after)
    own = np.where(fits, own, np.inf)
    # A stage leaves a block for each of those before and after it.
    start, end = np.indices((costs.blocks, costs.blocks + 1))
    number = np.arange(stages)[:, None, None]
    possible = (end > start) & (start >= number) & (costs.blocks - end >= stages - 1 - number)
    possible &= (number > 0) | (start == 0)
    possible &= (number < stages - 1) | (end == costs.blocks)
    return Bounds(np.where(possible, own, np.inf), busy, np.where(np.isfinite(way), way, 0.0))


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
