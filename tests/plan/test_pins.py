"""What the user pins, and why some pins are impossible."""

from __future__ import annotations

import pytest

from automap_launch.errors import PlanError
from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.search.config import PinConfig
from tests.plan.programs import cluster, two_layers


def resolve(**pin):
    return Pins.resolve(PinConfig(**pin), two_layers(), cluster())


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
        ({"stages": 2}, "search.pin.stages=2: this version cannot run pipeline plans"),
        (
            {"micro_batches": 4, "schedule": "1f1b"},
            "search.pin.micro_batches=4, search.pin.schedule=1f1b: this version",
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


def test_what_is_not_available_yet_says_what_is():
    with pytest.raises(PlanError) as caught:
        resolve(stages=2)
    assert "search.pin.data" in caught.value.hint


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
