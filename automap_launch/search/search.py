"""`search`: the best plan within a time box. The baselines come first: there is a plan from the first second on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from automap_launch.errors import NoPlanFitsError, PlanError
from automap_launch.plan.baselines import baselines as known_plans
from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.search.agent import Agent
from automap_launch.search.config import SearchConfig
from automap_launch.search.evaluator import EndReason, Evaluator, Limits, SearchEnd, SearchEvent
from automap_launch.search.searchers import (
    DQNSearcher,
    EpisodeEvent,
    HeuristicSearcher,
    RandomSearcher,
    Searcher,
    sweep,
)
from automap_launch.search.space import CostModel, Estimate, PlanSpace
from automap_launch.units import format_bytes, parse_duration

SWEEP = "enumeration"


@dataclass(frozen=True)
class AgentReport:
    """The best that the searcher found on its own, before the remaining plans were tried one by one.

    `seconds`: when it found it. `gap`: its step time over the search's best one, less 1.
    """

    best_step_seconds: float
    seconds: float
    gap: float


@dataclass(frozen=True)
class SearchResult:
    """The best plan that fits, and how it was found.

    Attributes:
      found_by: a baseline's name, `dqn`, `random`, `heuristic`, or `enumeration` for the plans tried after the agent.
      evaluations: different plans evaluated. episodes: of the searcher.
      baselines: their estimates by name, also of those that do not fit or that a pin rules out; None: there is none.
      agent: None when the search ended before the searcher found a plan that fits.
      curve: every improvement, in order.
      ended: why the search ended.
      proven_optimal: every plan of the space was evaluated.
      space_size: the number of plans in the space.
    """

    decision: Decision
    estimate: Estimate
    found_by: str
    seconds: float
    evaluations: int
    episodes: int
    baselines: dict[str, Estimate | None]
    agent: AgentReport | None
    curve: tuple[SearchEvent, ...]
    ended: EndReason
    proven_optimal: bool
    space_size: int


def search(
    model: CostModel,
    config: SearchConfig,
    pins: Pins,
    *,
    baselines: Mapping[str, Decision | None] | None = None,
    on_improvement: Callable[[SearchEvent], None] = lambda event: None,
    on_episode: Callable[[EpisodeEvent], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Looks for the plan with the lowest predicted step time that fits and keeps to the pins.

    Args:
      baselines: plans of known kinds, by name; those of `plan/baselines.py` when None. All are evaluated, and those
        that the pins allow are in the race.
      on_improvement: called with every new best plan, in this thread.
      on_episode: called after every episode.
      stop: asked before every evaluation; True ends the search with the best plan so far.

    Raises:
      NoPlanFitsError: no plan that was evaluated fits; the message says what the closest one needs.
      PlanError: no plan over all devices keeps to the pins.
    """
    space = PlanSpace.pinned(model.program, pins)
    if space.size == 0:
        raise PlanError(
            f"no plan over all {space.devices} devices keeps to search.pin: the batch does not divide by the axis "
            "`data`, or no linkage group that may be sharded divides by the axis `model`",
            hint="loosen search.pin, or set cluster.devices to a number that divides the batch",
        )
    budget = parse_duration(config.budget)
    # With a count of evaluations the result must not depend on the clock more than it has to.
    idle = budget * config.patience if config.max_evaluations is None else math.inf
    evaluator = Evaluator(model, space, Limits(budget, idle, config.max_evaluations, stop), on_improvement)
    if baselines is None:
        baselines = known_plans(model.program, model.cluster)
    known = {name: decision for name, decision in baselines.items() if decision is not None}
    in_race = {name for name, decision in known.items() if pins.allows(decision)}
    estimates = evaluator.seed(known, in_race)
    if not in_race:
        least_memory = space.complete(space.start(), shard=True)
        evaluator.seed({HeuristicSearcher.name: least_memory}, in_race={HeuristicSearcher.name})
    searcher = _searcher(config)
    ended = _run(searcher, evaluator, on_episode, config)
    best = evaluator.best
    if best is None:
        raise _no_plan_fits(evaluator)
    own = evaluator.best_by.get(searcher.name)
    return SearchResult(
        decision=best.decision,
        estimate=best.estimate,
        found_by=best.found_by,
        seconds=evaluator.seconds,
        evaluations=evaluator.evaluations,
        episodes=evaluator.episode,
        baselines={name: estimates.get(name) for name in baselines},
        agent=_report(own, best) if own else None,
        curve=tuple(evaluator.curve),
        ended=ended,
        proven_optimal=evaluator.remaining == 0,
        space_size=space.size,
    )


def _searcher(config: SearchConfig) -> Searcher:
    if config.method == "heuristic":
        return HeuristicSearcher()
    if config.method == "random":
        return RandomSearcher(config.seed)
    return DQNSearcher(Agent(config.agent, config.seed), config.sweep_limit)


def _run(
    searcher: Searcher, evaluator: Evaluator, on_episode: Callable[[EpisodeEvent], None], config: SearchConfig
) -> EndReason:
    evaluator.found_by = searcher.name
    ended = _until_end(lambda: searcher.run(evaluator, on_episode))
    if (
        config.method == "heuristic"
        or ended not in ("finished", "patience")
        or evaluator.remaining > config.sweep_limit
    ):
        return ended
    evaluator.found_by = SWEEP
    evaluator.limits = replace(evaluator.limits, idle_seconds=math.inf)
    ended = _until_end(lambda: sweep(evaluator))
    return "exhausted" if evaluator.remaining == 0 else ended


def _until_end(run: Callable[[], None]) -> EndReason:
    try:
        run()
    except SearchEnd as end:
        return end.reason
    return "finished"


def _report(own: SearchEvent, best: SearchEvent) -> AgentReport:
    step_seconds = own.estimate.step_seconds
    return AgentReport(step_seconds, own.seconds, step_seconds / best.estimate.step_seconds - 1)


def _no_plan_fits(evaluator: Evaluator) -> NoPlanFitsError:
    assert evaluator.closest is not None, "some plan is always evaluated"
    memory, limit = evaluator.closest.memory, evaluator.model.memory_limit
    parts = [
        f"{name} {format_bytes(getattr(memory, name))}"
        for name in ("parameters", "optimizer", "gradients", "activations")
    ]
    return NoPlanFitsError(
        f"no plan fits: of the {evaluator.evaluations} plans evaluated, the closest needs {memory.total} bytes "
        f"({format_bytes(memory.total)}) a device, and a plan may use {int(limit)} bytes "
        f"({format_bytes(limit)}) there. It needs {', '.join(parts)}",
        hint="use more devices or a smaller batch, loosen search.pin, or raise search.memory_fraction",
    )
