"""The oracle against every plan of small spaces, and what it says when it cannot finish."""

from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.group_bounds import HELD_BYTES, WHOLE
from automap_launch.plan.pins import Pins
from automap_launch.program.analyse import analyse
from automap_launch.search.config import PinConfig
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd
from automap_launch.search.group_tree import cases_of
from automap_launch.search.oracle import Oracle
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw
from tests.plan.programs import cluster
from tests.program import models
from tests.program.conftest import make_step

TINY = Distribution(
    blocks=(2, 5),
    products=(1, 2),
    inner_groups=(1, 2),
    batch=(1, 3),
    hosts=(1, 1),
    devices_per_host=(1, 2),
    network=(50.0, 5000.0),
    memory=(0.6, 6.0),
)
MODELS = 50


def tiny_models(count: int, seed: int = 0) -> list[tuple[SyntheticModel, PlanSpace]]:
    rng, found = np.random.default_rng(seed), []
    while len(found) < count:
        model = draw(rng, TINY)
        space = PlanSpace(model.program, model.pins)
        if 20 <= space.size <= 3000:
            found.append((model, space))
    return found


def test_the_oracle_finds_the_best_of_every_plan_of_tiny_models():
    pipelines = fitting = 0
    for model, space in tiny_models(MODELS):
        plans = list(space)
        costs = [e.step_seconds if e.fits else np.inf for e in model.estimate_many(plans)]
        best = int(np.argmin(costs))
        evaluator = Evaluator(model, space)
        Oracle(model, tolerance=0.0).run(evaluator, lambda event: None)
        assert evaluator.lower_bound == np.inf
        if np.isinf(costs[best]):
            assert evaluator.best is None
            continue
        fitting += 1
        pipelines += plans[best].stages > 1
        assert evaluator.best.estimate.step_seconds == pytest.approx(costs[best], rel=1e-9)
    assert fitting > MODELS // 2
    assert pipelines >= 10


def test_a_plan_within_the_tolerance_is_enough():
    evaluated = dict.fromkeys((0.0, 0.5), 0)
    for model, space in tiny_models(10, seed=6):
        optimum = min((e.step_seconds for e in model.estimate_many(list(space)) if e.fits), default=np.inf)
        for tolerance in evaluated:
            evaluator = Evaluator(model, space)
            Oracle(model, tolerance).run(evaluator, lambda event: None)
            evaluated[tolerance] += evaluator.evaluations
            if np.isfinite(optimum):
                assert evaluator.best.estimate.step_seconds * (1 - tolerance) <= optimum * (1 + 1e-9)
                assert evaluator.best.estimate.fits
    assert evaluated[0.5] < evaluated[0.0]


def pinned_space(dims: tuple[int, ...]) -> tuple[CostModel, PlanSpace]:
    """A language model of which so many dims of a weight are pinned to the axis `model`, which shards one of them."""
    function, state, batch = models.language_model(4)
    program = analyse(make_step(function, state, *batch))
    model = CostModel(program, cluster(1, 8, memory=2**20))
    groups = {f"0/layers/0/up@{dim}": "model" for dim in dims}
    pinned = PinConfig(model=2, micro_batches=2, storage="none", groups=groups)
    return model, PlanSpace(program, Pins.resolve(pinned, program, model.cluster))


@pytest.mark.parametrize("dims", [(0, 1), (1,)])
def test_the_best_plan_under_a_pin_that_a_larger_group_outranks(dims):
    model, space = pinned_space(dims)
    estimates = model.estimate_many(list(space))
    evaluator = Evaluator(model, space)
    Oracle(model, tolerance=0.0).run(evaluator, lambda event: None)
    fastest = min(e.step_seconds for e in estimates if e.fits)
    assert evaluator.best.estimate.step_seconds == pytest.approx(fastest, rel=1e-9)


def test_an_incumbent_that_is_optimal_is_proven_without_another_plan():
    model, space = next((m, s) for m, s in tiny_models(20, seed=1) if any(e.fits for e in m.estimate_many(list(s))))
    first = Evaluator(model, space)
    Oracle(model).run(first, lambda event: None)
    second = Evaluator(model, space)
    second.estimate(first.best.decision)
    Oracle(model).run(second, lambda event: None)
    assert second.best.decision == first.best.decision
    assert second.lower_bound == np.inf
    assert second.evaluations <= first.evaluations


def test_when_time_runs_out_the_lower_bound_holds():
    stopped = 0
    for model, space in tiny_models(12, seed=2):
        evaluator = Evaluator(model, space)
        Oracle(model).run(evaluator, lambda event: None)
        if evaluator.best is None:
            continue
        asked = iter([False] * 30)
        limited = Evaluator(model, space, Limits(stop=lambda asked=asked: next(asked, True)))
        try:
            Oracle(model).run(limited, lambda event: None)
        except SearchEnd:
            stopped += 1
            assert limited.lower_bound <= evaluator.best.estimate.step_seconds * (1 + 1e-9)
    assert stopped


def test_more_micro_batches_never_make_all_blocks_together_faster():
    """What lets the oracle rule out a case by one with fewer micro-batches."""
    for model, space in tiny_models(15, seed=4):
        for case in cases_of(space):
            one = Decision(*case.mesh, micro_batches=case.micro_batches, storage=case.storage)
            if (case.micro_batches * 2 * case.mesh[0]) <= model.program.groups[0].divisor:
                few = model.group_bounds(one).level(()).constant
                many = model.group_bounds(replace(one, micro_batches=2 * case.micro_batches)).level(()).constant
                assert many[WHOLE] >= few[WHOLE] * (1 - 1e-9)
                assert many[HELD_BYTES] == pytest.approx(few[HELD_BYTES])
