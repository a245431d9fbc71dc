"""How predictions and XLA's numbers are judged and written down."""

from __future__ import annotations

from automap_launch.plan.baselines import stream_group
from automap_launch.plan.decision import Decision
from automap_launch.plan.sharding import why_invalid
from tests.plan.programs import two_blocks, two_layers
from tools.verify_estimates import Row, plans, section

REDUCE, GATHER, MOVE = ("all_reduce", "data"), ("all_gather", "model"), ("permute", "data+model")


def row(collectives, memory=(100.0, 100.0), flops=(100.0, 100.0)):
    origins = dict.fromkeys(collectives, ("transpose(jvp())/dot_general",))
    return Row("a plan", Decision(4, 2), collectives, memory, flops, origins)


def test_what_is_off_by_more_than_its_limit_is_a_miss():
    assert row({REDUCE: (114.0, 100.0)}, (119.0, 100.0), (96.0, 100.0)).misses == 0
    assert row({REDUCE: (116.0, 100.0)}, (121.0, 100.0), (94.0, 100.0)).misses == 3
    assert row({REDUCE: (84.0, 100.0)}, (79.0, 100.0), (106.0, 100.0)).misses == 3


def test_a_kind_with_few_bytes_is_named_and_not_judged():
    small = row({REDUCE: (1000.0, 1000.0), MOVE: (0.0, 10.0)})
    assert small.misses == 0
    assert "permute over data and model, 10 B, at `transpose(jvp())/dot_general`" in section("model", [small])
    assert row({REDUCE: (1000.0, 1000.0), MOVE: (0.0, 100.0)}).misses == 1


def test_misses_stand_out_in_the_table():
    text = section("model", [row({REDUCE: (100.0, 100.0), GATHER: (0.0, 50.0), MOVE: (50.0, 0.0)}, (150.0, 100.0))])
    assert "all-reduce over data: 1.00" in text
    assert "all-gather over model: **not foreseen**" in text
    assert "permute over data and model: **50 B that are not there**" in text
    assert "| **1.50** | 1.00 |" in text


def test_plans_of_every_kind_that_the_program_can_have():
    program = two_layers()
    found = list(plans(program))
    assert len(found) >= 8
    assert len({decision for _, decision in found}) == len(found)
    assert all(why_invalid(program, d) is None and d.devices == 8 for _, d in found)
    assert {d.storage for _, d in found} == {"none", "optimizer", "state"}
    assert {(d.data, d.model) for _, d in found} == {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert any(d.sharded == {stream_group(program)} for _, d in found)


def test_plans_that_accumulate_where_the_batch_can_be_cut():
    accumulated = [d for _, d in plans(two_blocks()) if d.micro_batches > 1]
    assert {(d.data, d.model, d.storage) for d in accumulated} == {(8, 1, "none"), (8, 1, "optimizer"), (2, 4, "none")}
    assert all(d.micro_batches == 1 for _, d in plans(two_blocks(max_micro_batches=1)))
