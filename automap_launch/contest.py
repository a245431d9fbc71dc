"""Which plans a launch goes to its devices with: the search's, and those that are tried against it before training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.run_folder import FAVOURITE
from automap_launch.search.config import SearchConfig

if TYPE_CHECKING:
    from automap_launch.search.search import SearchResult

DATA_PARALLEL = "data_parallel"
RUNNER_UP = "runner_up"


def contenders(
    found: SearchResult, baselines: Mapping[str, Decision | None], pins: Pins, config: SearchConfig
) -> dict[str, Decision]:
    """Plans by name, the favourite first. There is one alone where nothing is tried.

    Pure data parallelism is there if it fits and the pins allow it. Without a trial it is the favourite itself where
    the search's plan is not predicted to gain more over it than predictions may be wrong by (`search.model_error`).
    """
    plain, estimate = baselines.get(DATA_PARALLEL), found.baselines.get(DATA_PARALLEL)
    if plain is not None and (estimate is None or not estimate.fits or not pins.allows(plain)):
        plain = None
    if config.trial == "off":
        small = plain is not None and estimate is not None and _gain(found, estimate.step_seconds) <= config.model_error
        return {FAVOURITE: plain if plain is not None and small else found.decision}
    named = {FAVOURITE: found.decision, RUNNER_UP: found.runner_up, DATA_PARALLEL: plain}
    chosen: dict[str, Decision] = {}
    # The same plan under a second name is left out; the name of pure data parallelism says more than `runner_up`.
    for name, decision in named.items():
        twice = decision in chosen.values() or (name == RUNNER_UP and decision == plain)
        if decision is not None and not twice:
            chosen[name] = decision
    return chosen


def _gain(found: SearchResult, over: float) -> float:
    return over / found.estimate.step_seconds - 1
