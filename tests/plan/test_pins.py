"""What the user pins, and why some pins are impossible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_launch.errors import PlanError
from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.program.batch_analysis import Refusal
from automap_launch.search.config import PinConfig
from tests.plan.programs import cluster, two_blocks, two_layers


def resolve(**pin):
    return Pins.resolve(PinConfig(**pin), two_blocks(), cluster())


def test_free_pins_allow_every_plan_on_all_devices():
    pins = resolve()
    assert pins.meshes() == ((8, 1), (4, 2), (2, 4), (1, 8))
    assert pins.allows(Decision(4, 2, frozenset({2}), "state"))
    assert not pins.allows(Decision(1, 1))
    assert not pins.allows(Decision(4, 1))


def test_pinned_axes_and_storage():
    pins = resolve(data=4, storage="optimizer")
    assert pins.meshes() == ((4, 2),)
    assert pins.allows(Decision(4, 2, frozenset({2}), "optimizer"))
    assert not pins.allows(Decision(4, 2, frozenset({2})))
    assert not pins.allows(Decision(8, 1, storage="optimizer"))
    assert resolve(data=2, model=4).meshes() == ((2, 4),)


def test_pinned_groups_by_a_parameters_path():
    pins = resolve(groups={"params/w1@1": "model", "params/w1@0": None})
    assert pins.groups == {2: "model", 1: None}
    assert pins.allows(Decision(4, 2, frozenset({2, 3})))
    assert not pins.allows(Decision(4, 2, frozenset({3})))
    assert not pins.allows(Decision(4, 2, frozenset({1, 2})))


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ({"data": 3}, "search.pin.data=3 is impossible: made-up .* has 8 devices, which 3 does not divide"),
        ({"model": 0}, "search.pin.model=0 is impossible"),
        ({"data": 4, "model": 4}, "make 16 devices, and made-up .* has 8"),
        ({"data": 1, "model": 1}, "make 1 devices, and made-up .* has 8"),
        ({"storage": "half"}, "search.pin.storage=half is none of none, optimizer, state"),
        ({"stages": 3}, "search.pin.stages=3 is impossible: made-up .* has 8 devices, which 3 does not divide"),
        ({"stages": 4}, "search.pin.stages=4 is impossible: stages are made of blocks.* and this step has 2"),
        ({"cuts": [1], "stages": 4}, r"search.pin.cuts=\[1\] makes 2 stages, and search.pin.stages=4"),
        ({"cuts": [2]}, r"search.pin.cuts=\[2\] is impossible: .* of the blocks 1 to 1"),
        ({"stages": 2, "data": 4, "model": 2}, "search.pin.model=2 and search.pin.stages=2 make 16 devices"),
        ({"stages": 2, "schedule": "none"}, "search.pin.stages=2 and search.pin.schedule=none: a pipeline has one of"),
        ({"stages": 1, "schedule": "1f1b"}, "search.pin.stages=1 and search.pin.schedule=1f1b"),
        ({"schedule": "zigzag"}, "search.pin.schedule=zigzag is none of none, gpipe, 1f1b, zero_bubble"),
        ({"micro_batches": 0}, "search.pin.micro_batches=0 is impossible"),
        ({"micro_batches": 3}, "search.pin.micro_batches=3 is impossible: the batch would be cut into 3 equal parts"),
        (
            {"micro_batches": 16, "data": 8},
            "search.pin.micro_batches=16 and search.pin.data=8 is impossible: .* 128 equal parts",
        ),
        ({"groups": {"params/w9": "model"}}, "no parameter params/w9"),
        ({"groups": {"params/w1": "model"}}, "params/w1 has dims in 2 groups: name the dim"),
        ({"groups": {"params/w1@7": "model"}}, "params/w1 has no dim 7"),
        ({"groups": {"params/w1@1": "data"}}, "pinned to 'data', expected model or null"),
        ({"groups": {"params/w1@1": "model", "params/w2@0": None}}, "group 2, which another pin puts elsewhere"),
        ({"data": 8, "groups": {"params/w1@1": "model"}}, "no plan keeps to search.pin: data=8 model=1: group 2"),
    ],
)
def test_impossible_pins_say_why(pin, message):
    with pytest.raises(PlanError, match=message):
        resolve(**pin)


def test_what_a_refused_step_allows_is_one_stage_and_one_micro_batch():
    refused = two_blocks(refusals=(Refusal("rows are sorted over the batch at train.py:12", "mixing"),))
    for pin in ({"stages": 2}, {"micro_batches": 4}, {"schedule": "1f1b"}, {"cuts": [1]}):
        with pytest.raises(PlanError, match=r"is impossible: rows are sorted over the batch at train\.py:12"):
            Pins.resolve(PinConfig(**pin), refused, cluster())
    free = Pins.resolve(PinConfig(), refused, cluster())
    assert free.stage_counts() == (1,)
    assert free.micro_batch_counts(1, 8) == (1,)
    assert not free.allows(Decision(4, 1, micro_batches=2, cuts=(1,), schedule="1f1b"))


def test_free_pins_allow_every_pipeline_of_the_blocks():
    pins = resolve()
    assert pins.stage_counts() == (1, 2)
    assert pins.schedules(1) == ("none",)
    assert pins.schedules(2) == ("gpipe", "1f1b", "zero_bubble")
    assert pins.meshes(2) == ((4, 1), (2, 2), (1, 4))
    assert pins.micro_batch_counts(2, 4) == (1, 2, 4, 8, 16)
    assert pins.micro_batch_counts(1, 8) == (1, 2, 4, 8)
    pipeline = Decision(4, 1, micro_batches=8, cuts=(1,), schedule="gpipe")
    assert pins.allows(pipeline)
    assert pins.allows(Decision(8, 1, micro_batches=8))
    assert not pins.allows(replace(pipeline, micro_batches=32))
    assert not pins.allows(replace(pipeline, data=2))


def test_pinned_pipelines():
    pins = resolve(stages=2, micro_batches=4, schedule="1f1b")
    assert (pins.stage_counts(), pins.schedules(2), pins.micro_batch_counts(2, 4)) == ((2,), ("1f1b",), (4,))
    chosen = Decision(4, 1, micro_batches=4, cuts=(1,), schedule="1f1b")
    assert pins.allows(chosen)
    assert not pins.allows(replace(chosen, micro_batches=8))
    assert not pins.allows(replace(chosen, schedule="gpipe"))
    assert not pins.allows(Decision(8, 1, micro_batches=4))
    by_cuts = resolve(cuts=[1])
    assert by_cuts.stage_counts() == (2,)
    assert by_cuts.allows(chosen)
    assert resolve(schedule="gpipe").stage_counts() == (2,)
    assert resolve(schedule="none").stage_counts() == (1,)
    assert resolve(micro_batches=1).micro_batch_counts(1, 8) == (1,)


def test_ways_to_name_a_dim_are_offered():
    with pytest.raises(PlanError) as caught:
        resolve(groups={"params/w1": "model"})
    assert "params/w1@0 (group 1, sizes 96)" in caught.value.hint


def test_pins_that_ask_for_one_stage_are_no_refusal():
    assert resolve(stages=1, micro_batches=1, schedule="none").meshes()[0] == (8, 1)


def test_a_batch_or_group_that_no_mesh_divides_is_named():
    with pytest.raises(PlanError, match=r"data=7 model=1: the batch \(sizes 64\) does not divide by 7"):
        Pins.resolve(PinConfig(data=7), two_layers(), cluster(per_host=7))
    pin = PinConfig(model=7, groups={"params/w1@1": "model"})
    with pytest.raises(PlanError, match=r"data=1 model=7: group 2 \(sizes 256\) does not divide by 7"):
        Pins.resolve(pin, two_layers(), cluster(per_host=7))


def test_a_model_axis_that_shards_nothing_is_no_plan_over_all_devices():
    assert not resolve().allows(Decision(4, 2))
    assert not resolve().allows(Decision(1, 8))
    assert resolve().allows(Decision(8, 1))
    with pytest.raises(PlanError, match=r"data=1 model=7: no group is there for model"):
        resolve_on(7)
    with pytest.raises(PlanError, match=r"data=4 model=2: no group is there for model"):
        resolve(model=2, groups={"params/w1@0": None, "params/w1@1": None, "params/w2@1": None})


def resolve_on(devices, **pin):
    return Pins.resolve(PinConfig(**pin), two_layers(), cluster(per_host=devices))


def test_devices_that_no_plan_can_all_use_are_refused_with_a_way_out():
    with pytest.raises(
        PlanError, match=r"no plan uses all 7 devices of made-up .*: data=7 model=1: the batch"
    ) as caught:
        resolve_on(7)
    assert "cluster.devices=N" in caught.value.hint
