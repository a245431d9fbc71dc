"""`Evaluator`: costs plans once each, keeps the best, and ends the search when a limit is reached.

Every searcher asks it, so all of them compete for one incumbent under the same limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from automap_launch.plan.decision import Decision
from automap_launch.search.space import CostModel, Estimate, PlanSpace

EndReason = Literal["budget", "evaluations", "patience", "stopped", "exhausted", "finished", "proven"]

# In units of log seconds: what a plan pays for not fitting, before what it pays for each doubling of its need.
OVERFLOW_PENALTY = 2.0
# Plans of larger spaces are not counted off: nobody tries them all.
EXHAUSTIBLE = 200_000
# A better bound is progress when the gap to it has become smaller by at least this share.
NOTICEABLE = 0.1


class SearchEnd(Exception):  # noqa: N818
    """A limit of the search is reached. It is no error: it is how every searcher's loop ends."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class SearchEvent:
    """A plan that beats all before it.

    Attributes:
      seconds: since the search began. evaluations: different plans evaluated by then. episode: the searcher's.
    """

    decision: Decision
    estimate: Estimate
    found_by: str
    seconds: float
    evaluations: int
    episode: int


@dataclass(frozen=True)
class Limits:
    """When the search, or a phase of it, ends.

    Attributes:
      seconds: since the search began. evaluations: different plans.
      patience: seconds without progress, or as long as the phase's progress took, whichever is more; it counts once
        there is a plan that fits.
      exhaustion: it ends when every plan of the space has been evaluated.
    """

    seconds: float = math.inf
    patience: float = math.inf
    evaluations: int | None = None
    exhaustion: bool = True
    stop: Callable[[], bool] = lambda: False


@dataclass
class Evaluator:
    """Costs decisions, each different one once.

    Attributes:
      found_by: the label of improvements from now on. episode: the searcher's, for events.
      fine_tuned: how many of its episodes were on copies of the model.
      best: the fastest plan that fits and may be used, with its event. closest: the plan that needs the least memory.
      best_by: by label, the fastest plan that fits which was asked for under it.
      covered: how many plans of the space have been evaluated; counted in spaces that can be exhausted.
      lower_bound: seconds, proven: no plan that beats the best one takes less.
    """

    model: CostModel
    space: PlanSpace
    limits: Limits = field(default_factory=Limits)
    on_improvement: Callable[[SearchEvent], None] = lambda event: None
    clock: Callable[[], float] = time.monotonic
    found_by: str = ""
    episode: int = 0
    fine_tuned: int = 0
    best: SearchEvent | None = None
    closest: Estimate | None = None
    best_by: dict[str, SearchEvent] = field(default_factory=dict)
    covered: int = 0
    lower_bound: float = 0.0
    curve: list[SearchEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cache: dict[Decision, Estimate] = {}
        self._space_size = self.space.size
        self._exhaustible = self._space_size <= EXHAUSTIBLE
        self.started = self._phase_began = self._last_progress = self.clock()
        self._gap = math.inf

    @property
    def evaluations(self) -> int:
        """Different plans evaluated."""
        return len(self._cache)

    @property
    def seconds(self) -> float:
        return self.clock() - self.started

    @property
    def remaining(self) -> int:
        """How many plans of the space have not been evaluated."""
        return self._space_size - self.covered

    def begin(self, limits: Limits) -> None:
        """Begins a phase of the search, whose patience counts from now."""
        self.limits = limits
        self._phase_began = self._last_progress = self.clock()

    def is_new(self, decision: Decision) -> bool:
        return decision not in self._cache

    def seed(self, candidates: Mapping[str, Decision], in_race: Collection[str]) -> dict[str, Estimate]:
        """Evaluates plans of known kinds, whatever the limits are, so that there is always a plan to return.

        Args:
          candidates: by name. in_race: names of those that may become the best.
        """
        self._evaluate(list(dict.fromkeys(candidates.values())))
        for name, decision in candidates.items():
            if name in in_race:
                self.found_by = name
                self._compete(decision)
        return {name: self._cache[decision] for name, decision in candidates.items()}

    def estimate(self, decision: Decision) -> Estimate:
        """As `estimate_many`, for one."""
        return self.estimate_many([decision])[0]

    def estimate_many(self, decisions: Sequence[Decision]) -> list[Estimate]:
        """The estimates of `decisions`, in their order; new ones in one call of the model.

        Raises:
          SearchEnd: a limit was reached; what was evaluated until then counts.
        """
        self.check_limits()
        new = [d for d in dict.fromkeys(decisions) if d not in self._cache]
        room = len(new) if self.limits.evaluations is None else self.limits.evaluations - self.evaluations
        self._evaluate(new[:room])
        for decision in decisions:
            if decision in self._cache:
                self._compete(decision)
        if len(new) > room:
            raise SearchEnd("evaluations")
        return [self._cache[d] for d in decisions]

    def _evaluate(self, new: Sequence[Decision]) -> None:
        if new:
            for decision, estimate in zip(new, self.model.estimate_many(new), strict=True):
                self._cache[decision] = estimate
                self.covered += self._exhaustible and decision in self.space

    def _compete(self, decision: Decision) -> None:
        estimate = self._cache[decision]
        if self.closest is None or estimate.memory.total < self.closest.memory.total:
            self.closest = estimate
        if not estimate.fits:
            return
        own = self.best_by.get(self.found_by)
        beats_own = own is None or estimate.step_seconds < own.estimate.step_seconds
        beats_all = self.best is None or estimate.step_seconds < self.best.estimate.step_seconds
        if not (beats_own or beats_all):
            return
        event = SearchEvent(decision, estimate, self.found_by, self.seconds, self.evaluations, self.episode)
        if beats_own:
            self.best_by[self.found_by] = event
        if beats_all:
            self.best = event
            self.curve.append(event)
            self._last_progress = self.clock()
            self.on_improvement(event)

    def runner_up(self) -> Decision | None:
        """The fastest plan that fits on another mesh, or with other stages, than the best one; None: there is none."""
        if self.best is None:
            return None
        shape = _shape(self.best.decision)
        others = [
            (estimate.step_seconds, index, decision)
            for index, (decision, estimate) in enumerate(self._cache.items())
            if estimate.fits and _shape(decision) != shape
        ]
        return next((decision for _, _, decision in sorted(others) if decision in self.space), None)

    def front(self) -> tuple[tuple[Decision, Estimate], ...]:
        """Plans of the space that fit, the fastest first; each of the others needs less memory than all before it."""
        fitting = [
            (estimate.step_seconds, estimate.memory.total, index, decision)
            for index, (decision, estimate) in enumerate(self._cache.items())
            if estimate.fits
        ]
        found: list[tuple[Decision, Estimate]] = []
        for _, memory, _, decision in sorted(fitting):
            if (not found or memory < found[-1][1].memory.total) and decision in self.space:
                found.append((decision, self._cache[decision]))
        return tuple(found)

    def raise_lower_bound(self, seconds: float) -> None:
        """Notes that no plan that beats the best one takes less. With infinity: there is none, the best is optimal."""
        self.lower_bound = max(self.lower_bound, seconds)
        if self.best is None or self.lower_bound == 0:
            return
        gap = self.best.estimate.step_seconds / self.lower_bound - 1
        if gap <= (1 - NOTICEABLE) * self._gap:
            self._gap = gap
            self._last_progress = self.clock()

    def check_limits(self) -> None:
        """Raises SearchEnd when a limit is reached."""
        now = self.clock()
        if self.limits.stop():
            raise SearchEnd("stopped")
        if self.limits.exhaustion and self.remaining == 0:
            raise SearchEnd("exhausted")
        if self.limits.evaluations is not None and self.evaluations >= self.limits.evaluations:
            raise SearchEnd("evaluations")
        if now - self.started >= self.limits.seconds:
            raise SearchEnd("budget")
        # While no plan fits there is nothing to be content with.
        if self.best is not None and now - self._last_progress >= max(
            self.limits.patience, self._last_progress - self._phase_began
        ):
            raise SearchEnd("patience")


def log_cost(estimate: Estimate, memory_limit: float) -> float:
    """What the agent lowers: log of the step's seconds, and a finite penalty for a plan that does not fit.

    The penalty grows with the need, so that of two plans that do not fit the nearer one is better.
    """
    cost = math.log(estimate.step_seconds)
    if estimate.fits:
        return cost
    return cost + OVERFLOW_PENALTY + max(0.0, math.log(estimate.memory.total / memory_limit))


def _shape(decision: Decision) -> tuple[int, int, int]:
    return decision.stages, decision.data, decision.model
