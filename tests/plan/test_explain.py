"""The tables that a user sees."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from automap_launch.plan.build import build_plan
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.explain import blocks, decisions_left, describe_mesh, explain, left_out
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Origin
from automap_launch.program.batch_analysis import Refusal
from automap_launch.search.config import PinConfig
from automap_launch.units import format_seconds
from tests.plan.programs import HIDDEN, IN, OUT, Builder, cluster, two_blocks, two_layers


def shown(decision, program=None, width=100, **kwargs):
    model = CostModel(program or two_layers(), cluster(**kwargs))
    console = Console(file=io.StringIO(), width=width)
    for table in explain(build_plan(decision, model, Origin("dqn")), model):
        console.print(table)
    return console.file.getvalue(), model


def test_the_plan_stands_beside_the_baselines_with_its_ratio_to_data_parallelism():
    text, model = shown(Decision(4, 2, frozenset({2})))
    row = next(line for line in text.splitlines() if "this plan" in line)
    ratio = model.estimate(Decision(4, 2, frozenset({2}))).step_seconds / model.estimate(Decision(8, 1)).step_seconds
    assert "data 4 x model 2" in row
    assert f"{ratio:.2f}x" in row
    assert "found by dqn" in text
    for name in ("single", "data_parallel", "zero_data_parallel", "megatron"):
        assert name in text


def test_what_does_not_fit_or_exist_is_said():
    text, _ = shown(Decision(8, 1), memory=2**17)
    assert next(line for line in text.splitlines() if "this plan " in line).split()[-2] == "no"
    text, _ = shown(Decision(1, 1), per_host=7)
    row = next(line for line in text.splitlines() if "data_parallel" in line)
    assert "impossible here" in row


def test_groups_with_sizes_parameters_axis_and_the_cost_of_deciding_otherwise():
    decision = Decision(4, 2, frozenset({1, 2}))
    text, model = shown(decision)
    rows = [line for line in text.splitlines() if re.match(r" *\d", line)]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"]
    assert "the batch" in rows[0]
    assert rows[2].split()[:5] == ["2", "256", "model", "w1,", "w2"]
    own, other = (model.estimate(d) for d in (decision, Decision(4, 2, frozenset({1}))))
    time, memory = other.step_seconds / own.step_seconds, other.memory.total / own.memory.total
    assert f"{time:.2f}x time, {memory:.2f}x memory" in rows[2]


def test_without_its_only_group_the_axis_would_shard_nothing():
    text, _ = shown(Decision(4, 2, frozenset({2})))
    row = next(line for line in text.splitlines() if "w1, w2" in line)
    assert row.rstrip().endswith("the only one sharded")


def test_groups_of_activations_alone_that_stay_whole_are_only_counted():
    b = Builder()
    batch, inner, scores, other = (b.group(k) for k in ("batch", "parameter", "activation", "activation"))
    w = b.argument("params/w", (8, 64), (None, inner), parameter=True)
    x = b.argument("batch/x", (64, 8), (batch, None), role="batch")
    y = b.value((64, 64), (batch, inner))
    wide = b.value((64, 32), (batch, scores))
    wider = b.value((64, 16), (batch, other))
    b.argument("batch/mask", (16,), (other,), role="batch")
    b.op("dot_general", (x, w), (y,), flops=1000, contracted=((0, 1), (1, 0)))
    b.op("reshape", (y,), (wide, wider))
    text, _ = shown(Decision(4, 2, frozenset({inner, other})), b.program())
    assert "and 1 groups of activations" not in text
    assert "and 1 group of activations alone, not sharded" in text
    assert [line.split()[0] for line in text.splitlines() if re.match(r" *\d", line)] == ["0", "1", "3"]


def test_nothing_is_cut_off_or_folded_at_100_columns():
    b = Builder()
    batch, inner = b.group("batch"), b.group("parameter")
    loss = b.value((), ())
    for layer in range(12):
        b.argument(f"params/encoder/blocks/{layer}/attention/kernel", (64, 8192), (None, inner), parameter=True)
    b.argument("params/embedding", (64, 8192), (None, inner), parameter=True)
    x = b.argument("batch/x", (64, 8), (batch, None), role="batch")
    b.op("reduce", (x,), (loss,), flops=512)
    text, _ = shown(Decision(16, 16, frozenset({inner}), "optimizer"), b.program(), hosts=32, memory=2**17)
    narrow = [line.rstrip() for line in text.splitlines()]
    wide, _ = shown(Decision(16, 16, frozenset({inner}), "optimizer"), b.program(), 200, hosts=32, memory=2**17)
    assert narrow == [line.rstrip() for line in wide.splitlines()]
    assert "encoder/blocks/*/attention/kernel and 1 more" in text


def test_blocks_that_are_alike_share_a_row():
    program = two_blocks()
    first, last = program.blocks
    console = Console(file=io.StringIO(), width=100)
    console.print(blocks(replace(program, blocks=(first, first, first, last))))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert [line[:5].strip() for line in lines if re.match(r" *\d", line)] == ["0 - 2", "3"]


def test_shares_of_time_add_up():
    text, _ = shown(Decision(4, 2, frozenset({2})))
    assert "all-reduce over data" in text
    shares = [int(line.split("%")[0].split("│")[-1].split()[-1]) for line in text.splitlines() if " % " in line]
    assert 98 <= sum(shares) <= 102


def test_meshes_in_words():
    assert describe_mesh(Decision(4, 2, frozenset(), "state")) == "data 4 x model 2, ZeRO: state"
    assert describe_mesh(Decision(8, 1)) == "data 8"
    assert describe_mesh(Decision(1, 1)) == "1 device"


PIPELINE = Decision(2, 2, frozenset({2}), micro_batches=4, cuts=(1,), schedule="1f1b")


def test_a_pipeline_shows_its_stages_and_its_bubble():
    text, model = shown(PIPELINE, two_blocks())
    rows = text[text.index("Stages: 4 micro-batches, schedule 1f1b") :].splitlines()
    first, last = (next(r.split() for r in rows if r.split()[:1] == [number]) for number in ("0", "1"))
    assert first[1:5] == ["0", "0", "-", "3"]
    assert last[1:5] == ["1", "4", "-", "7"]
    runs = model.stages(PIPELINE)
    assert format_seconds(4 * float(runs.forward[0])) in " ".join(first)
    assert [row[-3] for row in (first, last)] == ["2", "1"]  # micro-batches in flight
    bubble = next(r for r in rows if "waiting for other stages" in r)
    estimate = model.estimate(PIPELINE)
    assert f"{100 * estimate.bubble / estimate.step_seconds:.0f} %" in bubble
    assert "pp2 dp2 tp2 mb4" in text
    assert describe_mesh(PIPELINE) == "2 stages of data 2 x model 2, 4 micro-batches (1f1b)"
    assert "Stages" not in shown(Decision(8, 1), two_blocks())[0]


def test_the_parts_of_a_pipelines_step_add_up():
    model = CostModel(two_blocks(), cluster())
    for decision in (PIPELINE, replace(PIPELINE, storage="state"), Decision(8, 1, micro_batches=4)):
        breakdown, estimate = model.breakdown(decision), model.estimate(decision)
        assert sum(breakdown.compute.values()) == pytest.approx(estimate.compute)
        assert sum(use.seconds for use in breakdown.collectives) == pytest.approx(estimate.communication)
    whole = model.breakdown(Decision(4, 1)).flops
    additions = 4 * (IN * HIDDEN + HIDDEN * OUT)  # each micro-batch's gradients, to the sums so far
    assert model.breakdown(Decision(4, 1, micro_batches=4)).flops == pytest.approx(whole + additions)


def test_blocks_and_the_decisions_left():
    program = two_blocks()
    console = Console(file=io.StringIO(), width=100)
    console.print(blocks(program))
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert next(row for row in rows if row[:1] == ["1"])[-1] == "w2"
    text = decisions_left(Pins.resolve(PinConfig(data=4), program, cluster()), program)
    assert text.startswith("decisions left: stages 1, 2 of 2 blocks; micro-batches 1, 2, 4, 8, 16; mesh (2 ways)")
    assert "3 of 4 groups" in text


def test_what_a_search_leaves_out_and_why():
    assert left_out(two_blocks()) == []
    statistic = Refusal(
        "the mean of the batch at train.py:9 is used for each example", "statistic", local_statistics=True
    )
    refused = two_blocks(refusals=(statistic,))
    (reason,) = left_out(refused)
    assert reason.startswith("left out, micro-batches and stages: the mean of the batch at train.py:9")
    assert "search.allow_local_batch_stats=true" in reason
    assert "train.py:9" in shown(Decision(8, 1), refused)[0]
    own = Refusal("where micro-batches take statistics of their own at train.py:9", "statistic")
    assert left_out(two_blocks(one_stage=own)) == [f"left out, stages: {own.reason}"]
