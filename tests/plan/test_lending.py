"""What pipelines pay for layers whose state lies on other stages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.lending import Layers, least_bytes, lending
from automap_launch.program.analyse import analyse
from tests.plan.programs import cluster
from tests.program import models
from tests.program.conftest import make_step

SIX = Layers(np.arange(6), parameters=10, optimizer=20, sent=40, gathered=3, gradients=50, update=0.5)


def a_message(lender, borrower):
    return 100.0 * (borrower - lender), 1.0


@pytest.fixture(scope="module")
def scanned():
    """Six layers, each a block, and the head."""
    function, state, batch = models.language_model(6, scan=True)
    return analyse(make_step(function, state, *batch))


@pytest.mark.parametrize("cuts", [(3,), (2, 4), (1, 2, 3, 4, 5), ()])
def test_even_layers_cost_nothing_more(cuts):
    assert lending([SIX], np.array([cuts], dtype=np.int64), a_message) is None


def test_uneven_layers_by_hand():
    """Layers 0 and 1 | 2 | 3, 4 and 5: chunks of three on stages 0 and 2 would leave stage 1 without; chunks of two
    begin on stages 0, 1 and 2. Stage 1 holds layer 3 for stage 2. Beside it a plan where all lie where they run."""
    found = lending([SIX], np.array([(2, 3), (2, 4)]), a_message)
    assert found is not None
    assert found.before.tolist() == [[0, 0, 140], [0, 0, 0]]
    assert found.after.tolist() == [[0, 0, 140], [0, 0, 0]]
    assert found.update.tolist() == [[0, 0.5, 0], [0, 0, 0]]
    assert found.parameters.tolist() == [[0, 10, -10], [0, 0, 0]]
    assert found.optimizer.tolist() == [[0, 20, -20], [0, 0, 0]]
    assert found.gradients.tolist() == [[0, 50, 0], [0, 0, 0]]
    assert found.other.tolist() == [[0, 43, 37], [0, 0, 0]]


def test_two_stacks_of_one_loop_travel_in_one_message():
    found = lending([SIX, SIX], np.array([(2, 3)]), a_message)
    assert found is not None
    assert found.before.tolist() == [[0, 0, 180]]


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_no_stage_holds_less_than_the_least(stages):
    stacks = [SIX, Layers(np.array([0, 0, 1, 1]), 7, 1, sent=2, gathered=0, gradients=5, update=0.1)]
    cuts = np.array(list(itertools.combinations(range(1, 8), stages - 1)))
    found = lending(stacks, cuts, a_message)
    assert found is not None
    first, end = np.pad(cuts, ((0, 0), (1, 0))), np.pad(cuts, ((0, 0), (0, 1)), constant_values=8)
    least = least_bytes(stacks, first, end, stages)
    assert (found.bytes >= least).all()
    assert (found.bytes == least).any()


def test_a_plan_pays_for_the_layers_that_it_cuts_unevenly(scanned):
    """As 1, 2, 2 and 1 layers: stages 0, 1 and 2 hold two layers each, and each sends one on."""
    model = CostModel(scanned, cluster())
    decision = Decision(1, 1, micro_batches=2, cuts=(1, 3, 5), schedule="1f1b")
    costs = model.block_costs(decision)
    alone = costs.runs(np.array([0, 1, 3, 5]), np.array([1, 3, 5, 7]))
    stages = model.stages(decision)
    layer = sum(
        scanned.values[v].bytes // 6
        for k, v in enumerate(scanned.arguments)
        if k in scanned.parameters and scanned.step.arguments[k].shape[:1] == (6,)
    )
    np.testing.assert_allclose(stages.parameters - alone.parameters, [layer, 0, 0, -layer])
    np.testing.assert_allclose(stages.optimizer - alone.optimizer, [2 * layer, 0, 0, -2 * layer])
    message = 1e-6 + layer * 1e-10
    np.testing.assert_allclose(stages.before - alone.before, [0, message, message, message])
    assert (stages.after > alone.after).all()
    even = model.estimate(Decision(1, 1, micro_batches=2, cuts=(2, 4, 6), schedule="1f1b"))
    assert model.estimate(decision).memory.parameters != even.memory.parameters


def test_one_host_has_no_network_to_lend_over(scanned):
    one = cluster()
    local = replace(one, links=tuple(link for link in one.links if link.scope != "network"))
    decision = Decision(1, 1, micro_batches=2, cuts=(1, 3, 5), schedule="1f1b")
    assert CostModel(scanned, local).estimate(decision) == CostModel(scanned, one).estimate(decision)
