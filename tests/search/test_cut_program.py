import itertools

import numpy as np
import pytest

from automap_launch.plan.decision import Decision
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
