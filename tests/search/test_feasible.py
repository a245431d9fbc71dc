import numpy as np
import pytest

from automap_launch.search.feasible import count_feasible
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, draw

TINY = Distribution(
    blocks=(2, 5),
    products=(1, 2),
    inner_groups=(1, 2),
    batch=(1, 3),
    hosts=(0, 1),
    devices_per_host=(1, 2),
    memory=(0.3, 3.0),
)


def tiny_models(count: int):
    rng, found = np.random.default_rng(11), []
    while len(found) < count:
        model = draw(rng, TINY)
        space = PlanSpace(model.program, model.pins)
        if 20 <= space.size <= 3000:
            found.append((model, space, sum(e.fits for e in model.estimate_many(list(space)))))
    return found


def test_all_plans_that_fit_are_counted():
    counts = []
    for model, space, fitting in tiny_models(20):
        assert count_feasible(model, space, space.size + 1) == fitting
        counts.append(fitting / space.size)
    # Some models have no plan, some few, some many.
    assert min(counts) == 0
    assert max(counts) > 0.5
    assert any(0 < share < 0.1 for share in counts)


@pytest.mark.parametrize("at_least", [1, 30])
def test_counting_ends_when_there_are_enough(at_least):
    for model, space, fitting in tiny_models(10):
        assert (count_feasible(model, space, at_least) >= at_least) == (fitting >= at_least)
