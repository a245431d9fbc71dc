"""Bounds of each block are at most what any plan costs that they stand for."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.sharding import carried, rivals_of, shardable_groups
from automap_launch.program.analyse import analyse
from tests.plan.programs import cluster
from tests.program import models
from tests.program.conftest import make_step

SETS = 4  # of so many groups all subsets are tried


@pytest.fixture(scope="module")
def language_model():
    function, state, batch = models.language_model(4)
    return analyse(make_step(function, state, *batch))


def seconds(costs: BlockCosts) -> np.ndarray:
    return costs.compute + costs.collectives


@pytest.mark.parametrize("storage", ["none", "state"])
def test_blocks_cost_no_less_however_the_undecided_groups_are_taken(language_model, storage):
    model = CostModel(language_model, cluster(2, 4))
    one = Decision(2, 2, frozenset(), storage, 2, (4,), "1f1b")
    groups = [g for g in sorted(shardable_groups(language_model)) if language_model.groups[g].divisor % 2 == 0][:SETS]
    bounds = model.block_bounds(one)
    rivals = rivals_of(language_model)
    subsets = [frozenset(s) for n in range(len(groups) + 1) for s in itertools.combinations(groups, n)]
    subsets = [s for s in subsets if carried(s, rivals) == s]
    assert len(subsets) > 4
    tight = 0
    for decided in range(len(groups) + 1):
        undecided = frozenset(groups[decided:])
        for sharded in subsets:
            costs = model.block_costs(replace(one, sharded=sharded))
            least = bounds.least(sharded - undecided, undecided)
            assert (seconds(least) <= seconds(costs) * (1 + 1e-9)).all()
            assert (least.held <= costs.held * (1 + 1e-9)).all()
            assert (least.residuals <= costs.residuals).all()
            assert (least.working <= costs.working).all()
            assert (least.joined.bytes <= costs.joined.bytes * (1 + 1e-9)).all()
            tight += decided == len(groups) and np.allclose(seconds(least), seconds(costs), rtol=1e-9)
    # Where every group is decided nothing is left to the bound.
    assert tight == len(subsets)
