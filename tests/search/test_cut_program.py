import itertools
from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.decision import Decision
from automap_launch.plan.lending import Layers
from automap_launch.search.cut_program import CutProgram
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw

UNEVEN = Distribution(
    blocks=(7, 7),
    products=(1, 2),
    inner_groups=(1, 2),
    batch=(4, 4),
    hosts=(1, 1),
    devices_per_host=(2, 2),
    spread=(0.5, 1.0),
)


def models(count: int) -> list[SyntheticModel]:
    rng = np.random.default_rng(7)
    return [draw(rng, UNEVEN) for _ in range(count)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_best_cuts_are_those_of_all_that_fit(schedule, micro_batches, stages):
    for model in models(4):
        data = model.cluster.devices // stages
        every = list(itertools.combinations(range(1, 7), stages - 1))
        plans = [Decision(data, 1, micro_batches=micro_batches, cuts=cuts, schedule=schedule) for cuts in every]
        costs = [e.step_seconds if e.fits else np.inf for e in model.estimate_many(plans)]
        program = CutProgram(model.block_costs(plans[0]), stages, schedule, model.memory_limit)
        found = program.best(np.inf)
        if np.isinf(min(costs)):
            assert found.cuts is None
            continue
        assert program.lower_bound <= min(costs) * (1 + 1e-9)
        assert found.seconds == pytest.approx(min(costs))
        assert costs[every.index(found.cuts)] == pytest.approx(min(costs))
        assert program.best(min(costs) * (1 - 1e-6)).cuts is None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("blocks", [(0, 1, 2, 3, 4, 5), (0, 0, 1, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_the_best_cuts_are_those_of_all_where_layers_of_a_loop_lie_elsewhere(schedule, blocks):
    """Also where as much as half of the plans do not fit, for what their stages hold for each other."""
    for model, stages in itertools.product(models(3), (2, 3, 4)):
        every = np.array(list(itertools.combinations(range(1, 7), stages - 1)))
        plan = Decision(1, 1, micro_batches=4, cuts=tuple(every[0]), schedule=schedule)
        costs = model.block_costs(plan)
        held, second = costs.held.sum() / 40, costs.compute.sum() / 20
        own = Layers(np.array(blocks), held, 2 * held, sent=held, gathered=0.0, gradients=held, update=second)
        costs = replace(costs, stacks=(own,))
        pipelines = costs.pipelines(schedule, every)
        for limit in (np.inf, np.median(pipelines.memory.sum(axis=1)), pipelines.memory.sum(axis=1).min()):
            seconds = np.where(pipelines.fits(limit), pipelines.step_seconds, np.inf)
            program = CutProgram(costs, stages, schedule, limit)
            found = program.best(np.inf)
            assert program.lower_bound <= seconds.min() * (1 + 1e-9)
            assert found.seconds == pytest.approx(seconds.min())
            assert seconds[every.tolist().index(list(found.cuts))] == pytest.approx(seconds.min())


def test_the_bound_is_close_where_stages_are_even():
    """Equal blocks: a bound that is far below the best would leave all cuts to be timed."""
    shape = {"blocks": (16, 16), "products": (1, 1), "inner_groups": (1, 1), "batch": (6, 6)}
    even = Distribution(**shape, activation_seconds=(1e-6, 1e-6), spread=(0.0, 0.0), rare=0.0)
    even_model = draw(np.random.default_rng(0), even)
    plan = Decision(1, 1, micro_batches=16, cuts=(4, 8, 12), schedule="1f1b")
    for schedule in ("gpipe", "1f1b", "zero_bubble"):
        program = CutProgram(even_model.block_costs(plan), 4, schedule, np.inf)
        assert program.lower_bound > 0.99 * program.best(np.inf).seconds
        assert program.best(np.inf).timed < 200
