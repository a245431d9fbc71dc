"""`search`: the best plan within a time box. The baselines come first: there is a plan from the first second on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from automap_launch.errors import NoPlanFitsError, PlanError
from automap_launch.plan.baselines import baselines as known_plans
from automap_launch.plan.decision import STORAGES, Decision
from automap_launch.plan.pins import Pins
from automap_launch.search.agent import Agent
from automap_launch.search.anneal import AnnealingSearcher
from automap_launch.search.config import SearchConfig
from automap_launch.search.dqn_searcher import DQNSearcher
from automap_launch.search.evaluator import EndReason, Evaluator, Limits, SearchEnd, SearchEvent
from automap_launch.search.local_search import climb
from automap_launch.search.oracle import TOLERANCE, Oracle
from automap_launch.search.searchers import (
    EpisodeEvent,
    HeuristicSearcher,
    OnEpisode,
    RandomSearcher,
    Searcher,
    simple_plans,
    single_stage_plans,
)
from automap_launch.search.space import MOST_GROUPS, BoundedCostModel, Estimate, PlanSpace
from automap_launch.search.weights import pretrained_agent
from automap_launch.units import format_bytes, parse_duration

# The share of its time or evaluations that the agent has before the oracle speaks.
AGENT_SHARE = 0.5
SEEDS = "simple"
# So many plans are tried one by one where no baseline fits.
_FIRST_TRIES = 8


@dataclass(frozen=True)
class AgentReport:
    """The best that the agent's own episodes came upon, before the oracle spoke.

    `seconds`: when it found it. `gap`: its step time over the search's best one, less 1. `fine_tuned`: its episodes on
    distributions around the model, besides those on the model itself.
    """

    best_step_seconds: float
    seconds: float
    gap: float
    fine_tuned: int


@dataclass(frozen=True)
class SearchResult:
    """The best plan that fits, and how it was found.

    Attributes:
      found_by: a baseline's name, `simple` (the simple plans of one stage), the searcher's name, `hill_climbing`, or
        `oracle`.
      runner_up: see `Evaluator.runner_up`.
      front: see `Evaluator.front`.
      evaluations: different plans evaluated. episodes: of the searcher.
      baselines: their estimates by name, also of those that do not fit or that a pin rules out; None: there is none.
      agent: None when the search ended before the agent found a plan that fits, or had none.
      curve: every improvement, in order.
      ended: why the search ended.
      proven_optimal: no plan of the space is faster by more than `oracle.TOLERANCE`. lower_bound_step_seconds: what is
        proven of all plans otherwise; None where nothing is.
      space_size: the number of plans in the space (at most; see `PlanSpace.size`).
    """

    decision: Decision
    estimate: Estimate
    found_by: str
    runner_up: Decision | None
    front: tuple[tuple[Decision, Estimate], ...]
    seconds: float
    evaluations: int
    episodes: int
    baselines: dict[str, Estimate | None]
    agent: AgentReport | None
    curve: tuple[SearchEvent, ...]
    ended: EndReason
    proven_optimal: bool
    lower_bound_step_seconds: float | None
    space_size: int

    @property
    def conclusion(self) -> str:
        """What is known of the plan's quality, in words."""
        agent = f"; the agent's own best is {self.agent.gap:.1%} above it" if self.agent is not None else ""
        if self.agent is not None and self.agent.fine_tuned:
            agent += f", after {self.agent.fine_tuned} episodes of fine-tuning"
        if self.proven_optimal:
            return f"proven optimal to {TOLERANCE:.2%} among {float(self.space_size):.2g} plans{agent}"
        if self.gap is not None:
            return f"at most {self.gap:.1%} above the optimum; ended: {self.ended}{agent}"
        return f"ended: {self.ended}{agent}"

    @property
    def gap(self) -> float | None:
        """How much longer the plan takes than the lower bound, as a share of that; None where there is none."""
        if self.proven_optimal:
            return 0.0
        bound = self.lower_bound_step_seconds
        return self.estimate.step_seconds / bound - 1 if bound else None


def search(
    model: BoundedCostModel,
    config: SearchConfig,
    pins: Pins,
    *,
    baselines: Mapping[str, Decision | None] | None = None,
    on_improvement: Callable[[SearchEvent], None] = lambda event: None,
    on_episode: Callable[[EpisodeEvent], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Looks for the plan with the lowest predicted step time that fits and keeps to the pins.

    Args:
      baselines: plans of known kinds, by name; those of `plan/baselines.py` when None. All are evaluated, and those
        that the pins allow are in the race.
      on_improvement: called with every new best plan, in this thread.
      on_episode: called after every episode.
      clock: what the budget is measured with, in seconds.
      stop: asked before every evaluation; True ends the search with the best plan so far.

    Raises:
      NoPlanFitsError: no plan that was evaluated fits; the message says what the closest one needs.
      PlanError: no plan over all devices keeps to the pins.
    """
    space = PlanSpace(model.program, pins, config.prune)
    if not space.heads:
        raise PlanError(
            f"no plan over all {space.devices} devices keeps to search.pin: the batch does not divide by the axis "
            "`data` and the micro-batches, or no linkage group that may be sharded divides by the axis `model`",
            hint="loosen search.pin, or set cluster.devices to a number that divides the batch",
        )
    limits = Limits(parse_duration(config.budget), _patience(config), config.max_evaluations, stop=stop)
    evaluator = Evaluator(model, space, limits, on_improvement, clock)
    if baselines is None:
        baselines = known_plans(model.program, model.cluster)
    known = {name: decision for name, decision in baselines.items() if decision is not None}
    in_race = {name for name, decision in known.items() if pins.allows(decision)}
    estimates = evaluator.seed(known, in_race)
    if evaluator.best is None:
        _seed_least_memory(evaluator)
    ended = _run(model, evaluator, on_episode, config)
    best = evaluator.best
    if best is None:
        raise _no_plan_fits(evaluator)
    own = evaluator.best_by.get(DQNSearcher.name)
    proven = evaluator.remaining == 0 or math.isinf(evaluator.lower_bound)
    return SearchResult(
        decision=best.decision,
        estimate=best.estimate,
        found_by=best.found_by,
        runner_up=evaluator.runner_up(),
        front=evaluator.front(),
        seconds=evaluator.seconds,
        evaluations=evaluator.evaluations,
        episodes=evaluator.episode,
        baselines={name: estimates.get(name) for name in baselines},
        agent=_report(own, best, evaluator.fine_tuned) if own else None,
        curve=tuple(evaluator.curve),
        ended=ended,
        proven_optimal=proven,
        lower_bound_step_seconds=best.estimate.step_seconds if proven else evaluator.lower_bound or None,
        space_size=space.size,
    )


def _patience(config: SearchConfig) -> float:
    # With a count of evaluations the result must not depend on the clock more than it has to.
    if config.patience is None or config.max_evaluations is not None:
        return math.inf
    return parse_duration(config.patience)


def _run(model: BoundedCostModel, evaluator: Evaluator, on_episode: OnEpisode, config: SearchConfig) -> EndReason:
    if config.method == "heuristic":
        return _let(HeuristicSearcher(), evaluator, on_episode)
    if config.method == "random":
        return _let(RandomSearcher(config.seed), evaluator, on_episode)
    if config.method == "anneal":
        return _let(AnnealingSearcher(config.seed), evaluator, on_episode)
    limits = evaluator.limits
    has_agent = config.method in ("dqn", "portfolio")
    has_oracle = config.method != "dqn" and len(evaluator.space.groups) <= MOST_GROUPS
    if not has_agent and not has_oracle:
        raise PlanError(
            f"the oracle decides at most {MOST_GROUPS} groups one by one, and the step has "
            f"{len(evaluator.space.groups)} that are not tied",
            hint="set search.prune.tied_layers=true, or search=dqn",
        )
    # The agent has its episodes also where the seeds have been through the whole space: they show what it is worth.
    evaluator.begin(replace(limits, exhaustion=not has_agent, patience=math.inf))
    evaluator.found_by = SEEDS
    ended = _until_end(partial(_seed, evaluator, config))
    if ended == "finished" and has_agent:
        of_the_agent = _of_the_agent(limits, evaluator.evaluations) if has_oracle else limits
        evaluator.begin(replace(of_the_agent, exhaustion=False))
        ended = _let(_dqn(evaluator, config), evaluator, on_episode)
        if not has_oracle or limits.stop() or (ended == "evaluations" and _spent(evaluator, limits)):
            return ended
        ended = "finished"
    if ended != "finished":
        return ended
    evaluator.begin(limits)
    ended = _let(Oracle(model), evaluator, on_episode)
    return "proven" if ended == "finished" else ended


def _seed_least_memory(evaluator: Evaluator) -> None:
    """Where no baseline is a plan that may be returned: plans of little memory, until one fits. So there is a plan in
    the first second, before all the others are priced."""
    space, name = evaluator.space, HeuristicSearcher.name
    plans = single_stage_plans(space) or [space.complete(space.start(), "full")]
    plans.sort(key=lambda d: (-len(d.sharded), -d.micro_batches, -STORAGES.index(d.storage)))
    for plan in filter(evaluator.is_new, plans[:_FIRST_TRIES]):
        evaluator.seed({name: plan}, in_race={name})
        if evaluator.best is not None:
            return


def _seed(evaluator: Evaluator, config: SearchConfig) -> None:
    """The simple plans: of one stage for the agent, which finds the others; all of them before an oracle alone."""
    simple = simple_plans(evaluator.space) if config.method == "exact" else single_stage_plans(evaluator.space)
    evaluator.estimate_many(simple)
    if evaluator.best is not None:
        climb(evaluator, evaluator.best.decision)


def _dqn(evaluator: Evaluator, config: SearchConfig) -> DQNSearcher:
    agent = pretrained_agent(config.agent, config.seed) if config.pretrained else Agent(config.agent, config.seed)
    return DQNSearcher(agent, fine_tuning=config.fine_tuning)


def _of_the_agent(limits: Limits, evaluations: int) -> Limits:
    """Those of the agent, when the oracle comes after it."""
    count = limits.evaluations
    return replace(
        limits,
        seconds=AGENT_SHARE * limits.seconds,
        evaluations=None if count is None else evaluations + int(AGENT_SHARE * max(count - evaluations, 0)),
    )


def _spent(evaluator: Evaluator, limits: Limits) -> bool:
    return limits.evaluations is not None and evaluator.evaluations >= limits.evaluations


def _let(searcher: Searcher, evaluator: Evaluator, on_episode: OnEpisode) -> EndReason:
    evaluator.found_by = searcher.name
    return _until_end(lambda: searcher.run(evaluator, on_episode))


def _until_end(run: Callable[[], None]) -> EndReason:
    try:
        run()
    except SearchEnd as end:
        return end.reason
    return "finished"


def _report(own: SearchEvent, best: SearchEvent, fine_tuned: int) -> AgentReport:
    step_seconds = own.estimate.step_seconds
    return AgentReport(step_seconds, own.seconds, step_seconds / best.estimate.step_seconds - 1, fine_tuned)


def _no_plan_fits(evaluator: Evaluator) -> NoPlanFitsError:
    assert evaluator.closest is not None, "some plan is always evaluated"
    memory, limit = evaluator.closest.memory, evaluator.model.memory_limit
    parts = [
        f"{name} {format_bytes(getattr(memory, name))}"
        for name in ("parameters", "optimizer", "gradients", "activations")
    ]
    proven = evaluator.remaining == 0 or math.isinf(evaluator.lower_bound)
    none = f"none of all {float(evaluator.space.size):.2g} plans does" if proven else "none was found that does"
    return NoPlanFitsError(
        f"no plan fits: {none}. Of the {evaluator.evaluations} plans evaluated, the closest needs {memory.total} bytes "
        f"({format_bytes(memory.total)}) a device, and a plan may use {int(limit)} bytes "
        f"({format_bytes(limit)}) there. It needs {', '.join(parts)}",
        hint="use more devices or a smaller batch, loosen search.pin, or raise search.memory_fraction",
    )
