"""From an analysed step to the plans that go to the devices: from the cache, or by a search and what XLA says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_launch.config import Config
from automap_launch.contest import DATA_PARALLEL, contenders
from automap_launch.interruption import Interrupted, Interruption
from automap_launch.plan.baselines import baselines
from automap_launch.plan.build import build_plan
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.explain import decisions_left
from automap_launch.plan.file import save_plan
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Origin
from automap_launch.plan_cache import Outcome, UnusableEntryError, entry_file, keep, load
from automap_launch.run_folder import FAVOURITE, RunFolder
from automap_launch.terminal import Terminal
from automap_launch.tracking.tracking import Tracking
from automap_launch.units import format_seconds, parse_duration
from automap_launch.verification import NEXT, ChildCompiler, Verified, plans_to_verify, verify

if TYPE_CHECKING:
    from automap_launch.search.evaluator import SearchEvent
    from automap_launch.search.search import SearchResult
    from automap_launch.search.searchers import EpisodeEvent


@dataclass(frozen=True)
class Planner:
    """Finds the plans of one launch."""

    config: Config
    model: CostModel
    folder: RunFolder
    tracking: Tracking
    terminal: Terminal
    interruption: Interruption

    def run(self) -> Outcome:
        """The plans, of which the favourite is in the run folder, and what is known of them.

        Raises:
          NoPlanFitsError, PlanError: see `search`.
          Interrupted: a signal came; the best plan so far is in the run folder.
        """
        config, model = self.config.search, self.model
        pins = Pins.resolve(config.pin, model.program, model.cluster)
        if self.config.mode == "plan":
            self.terminal.note(decisions_left(pins, model.program))
        path = entry_file(model, config)
        outcome = self._from_cache(path)
        if outcome is None:
            outcome = self._anew(pins)
            self._keep(outcome, path)
        save_plan(outcome.plans[FAVOURITE], self.folder.plan)
        for note in outcome.notes:
            self.terminal.note(note)
        return outcome

    def _from_cache(self, path: Path) -> Outcome | None:
        if self.config.search.cache != "read":
            return None
        try:
            kept = load(path, self.model, self.config.search)
        except UnusableEntryError as error:
            self.terminal.note(f"the plan cache is of no use here, so a plan is searched for: {error}")
            return None
        if kept is None:
            return None
        self.terminal.note(f"plan from the cache of {kept.made}; search.cache=refresh searches again")
        return dataclasses.replace(kept, search={**kept.search, "cached": kept.made})

    def _keep(self, outcome: Outcome, path: Path) -> None:
        if self.config.search.cache == "off":
            return
        try:
            keep(outcome, path)
        except OSError as error:
            self.terminal.note(f"cannot keep the plan for later launches in {path}: {error.strerror}")

    def _anew(self, pins: Pins) -> Outcome:
        config, model = self.config.search, self.model
        known = baselines(model.program, model.cluster)
        found = self._search(pins, known)
        notes = [
            f"search: {found.evaluations} plans in {format_seconds(found.seconds)}, {found.episodes} episodes; "
            f"found by {found.found_by}; {found.conclusion}"
        ]
        chosen = contenders(found, known, pins, config)
        origin = Origin(found.found_by, config.seed, found.evaluations, found.seconds)
        if chosen[FAVOURITE] != found.decision:
            origin = dataclasses.replace(origin, searcher=DATA_PARALLEL)
            notes.append(
                f"its plan is predicted to take {format_seconds(found.estimate.step_seconds)} a step: it does not gain "
                f"more over pure data parallelism than predictions may be wrong by (search.model_error="
                f"{config.model_error:g}), and nothing is tried (search.trial=off), so pure data parallelism is taken"
            )
        verified = self._verify(chosen, found)
        if verified.plans[FAVOURITE] != chosen[FAVOURITE]:
            origin = dataclasses.replace(origin, searcher=NEXT)
        plans = {
            name: build_plan(decision, model, origin if name == FAVOURITE else Origin(name, config.seed))
            for name, decision in verified.plans.items()
        }
        section = {**_section(found), "verified": [dataclasses.asdict(check) for check in verified.checks] or None}
        made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        return Outcome(plans, section, (*notes, *verified.notes), made)

    def _search(self, pins: Pins, known: Mapping[str, Decision | None]) -> SearchResult:
        from automap_launch.search.search import search  # imports torch, which no other phase needs

        model, config, tracking = self.model, self.config.search, self.tracking
        episode = 0

        def on_improvement(event: SearchEvent) -> None:
            origin = Origin(event.found_by, config.seed, event.evaluations, event.seconds)
            save_plan(build_plan(event.decision, model, origin), self.folder.plan)
            tracking.search(
                episode=episode,
                best_step_seconds=event.estimate.step_seconds,
                evaluations=event.evaluations,
                improvement={"found_by": event.found_by, **dataclasses.asdict(event.decision)},
            )

        def on_episode(event: EpisodeEvent) -> None:
            nonlocal episode
            episode = event.episode
            tracking.search(
                episode=event.episode,
                best_step_seconds=event.best_step_seconds,
                evaluations=event.evaluations,
                epsilon=event.epsilon,
                loss=event.loss,
            )

        tracking.search_started(seconds=parse_duration(config.budget), evaluations=config.max_evaluations)
        try:
            found = search(
                model,
                config,
                pins,
                baselines=known,
                on_improvement=on_improvement,
                on_episode=on_episode,
                stop=lambda: self.interruption.requested,
            )
            self.interruption.check()
        except Interrupted:
            if self.folder.plan.exists():
                self.terminal.note(f"the best plan so far is in {self.folder.plan}")
            raise
        finally:
            tracking.search_ended()
        return found

    def _verify(self, chosen: dict[str, Decision], found: SearchResult) -> Verified:
        config, model = self.config.search, self.model
        top_k = plans_to_verify(config, model.cluster.platform)
        seconds = parse_duration(config.verify_timeout)
        compiler = ChildCompiler(model, self.folder.train_step, seconds, config.max_blocks, config.verify_timeout)
        return verify(chosen, found.front, model, top_k, compiler)


def _section(found: SearchResult) -> dict[str, Any]:
    """The fields of `summary.json` that the search fills."""
    return {
        "seconds": found.seconds,
        "evaluations": found.evaluations,
        "episodes": found.episodes,
        "predicted_step_seconds": found.estimate.step_seconds,
        "baselines": {n: e.step_seconds if e and e.fits else None for n, e in found.baselines.items()},
        "agent": dataclasses.asdict(found.agent) if found.agent else {},
        "optimum_step_seconds": found.estimate.step_seconds if found.proven_optimal else None,
        "lower_bound_step_seconds": found.lower_bound_step_seconds,
        "gap": found.gap,
    }
