"""Which plans are tried before training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_launch.contest import contenders
from automap_launch.plan.cost import Estimate
from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Memory
from automap_launch.search.config import SearchConfig
from automap_launch.search.search import SearchResult

BEST, NEXT, PLAIN = Decision(2, 4, frozenset({1})), Decision(4, 2, frozenset({1})), Decision(8, 1)
KNOWN = {"data_parallel": PLAIN}


def estimate(seconds: float, fits: bool = True) -> Estimate:
    return Estimate(seconds, seconds, 0.0, Memory(1, 1, 1, 1), fits)


def found(best: Decision = BEST, runner_up: Decision | None = NEXT, plain: Estimate | None = None) -> SearchResult:
    return SearchResult(
        decision=best,
        estimate=estimate(1.0),
        found_by="dqn",
        runner_up=runner_up,
        front=(),
        seconds=1.0,
        evaluations=3,
        episodes=1,
        baselines={"data_parallel": plain or estimate(1.2)},
        agent=None,
        curve=(),
        ended="finished",
        proven_optimal=False,
        lower_bound_step_seconds=None,
        space_size=3,
    )


def test_the_best_the_next_and_data_parallelism_are_tried() -> None:
    assert contenders(found(), KNOWN, Pins(8), SearchConfig()) == {
        "plan": BEST,
        "runner_up": NEXT,
        "data_parallel": PLAIN,
    }


def test_no_plan_is_tried_twice() -> None:
    assert list(contenders(found(runner_up=PLAIN), KNOWN, Pins(8), SearchConfig())) == ["plan", "data_parallel"]
    assert list(contenders(found(best=PLAIN), KNOWN, Pins(8), SearchConfig())) == ["plan", "runner_up"]


@pytest.mark.parametrize("pins", [Pins(8, model=4), Pins(8, data=2)])
def test_data_parallelism_is_left_out_where_a_pin_rules_it_out(pins: Pins) -> None:
    assert "data_parallel" not in contenders(found(), KNOWN, pins, SearchConfig())


def test_data_parallelism_is_left_out_where_it_does_not_fit() -> None:
    assert "data_parallel" not in contenders(found(plain=estimate(1.2, fits=False)), KNOWN, Pins(8), SearchConfig())


@pytest.mark.parametrize(("error", "chosen"), [(0.1, BEST), (0.3, PLAIN)])
def test_without_a_trial_a_small_gain_is_not_taken(error: float, chosen: Decision) -> None:
    config = replace(SearchConfig(), trial="off", model_error=error)
    assert contenders(found(), KNOWN, Pins(8), config) == {"plan": chosen}
