"""The tables that a user sees."""

from __future__ import annotations

import io

from rich.console import Console

from automap_launch.plan.build import build_plan
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.explain import describe_mesh, explain
from automap_launch.plan.plan import Origin
from tests.plan.programs import cluster, two_layers


def shown(decision, **kwargs):
    model = CostModel(two_layers(), cluster(**kwargs))
    console = Console(file=io.StringIO(), width=200)
    for table in explain(build_plan(decision, model, Origin("dqn")), model):
        console.print(table)
    return console.file.getvalue(), model


def test_the_plan_stands_beside_the_baselines_with_its_ratio_to_data_parallelism():
    text, model = shown(Decision(4, 2, frozenset({2})))
    row = next(line for line in text.splitlines() if "this plan" in line)
    ratio = model.estimate(Decision(4, 2, frozenset({2}))).step_seconds / model.estimate(Decision(8, 1)).step_seconds
    assert "data 4 x model 2" in row
    assert "dqn" in row
    assert f"{ratio:.3g}" in row
    for name in ("single", "data_parallel", "zero_data_parallel", "megatron"):
        assert name in text


def test_what_does_not_fit_or_exist_is_said():
    text, _ = shown(Decision(8, 1), memory=2**17)
    assert "does not fit" in text
    text, _ = shown(Decision(1, 1), per_host=7)
    row = next(line for line in text.splitlines() if "data_parallel" in line)
    assert "impossible here" in row


def test_groups_with_sizes_members_axis_and_reason():
    text, _ = shown(Decision(4, 2, frozenset({2})))
    assert "params/w1, params/w2" in text
    assert "the batch, 4 ways" in text
    assert "whole, a step would take" in text
    assert "sharded, a step would take" in text


def test_shares_of_time_add_up():
    text, _ = shown(Decision(4, 2, frozenset({2})))
    assert "all-reduce over data" in text
    shares = [int(line.split("%")[0].split("│")[-1].split()[-1]) for line in text.splitlines() if " % " in line]
    assert 98 <= sum(shares) <= 102


def test_meshes_in_words():
    assert describe_mesh(Decision(4, 2, frozenset(), "state")) == "data 4 x model 2, ZeRO: state"
    assert describe_mesh(Decision(8, 1)) == "data 8"
    assert describe_mesh(Decision(1, 1)) == "1 device"
