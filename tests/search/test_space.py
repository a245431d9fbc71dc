import dataclasses

import pytest

from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.search.space import Partial, PlanSpace
from tests.search.synthetic import program

KINDS = ("parameter", "parameter", "activation")


def every_end(space: PlanSpace) -> list[Decision]:
    """The plan at the end of every valid path."""
    ends, open_ = [], [space.start()]
    while open_:
        partial = open_.pop()
        choices = space.choices(partial)
        if not choices:
            ends.append(space.complete(partial, shard=False))
        open_ += [c.result for c in choices if c.valid]
    return ends


def key(decision: Decision) -> tuple[object, ...]:
    return decision.data, decision.model, tuple(sorted(decision.sharded)), decision.storage


@pytest.mark.parametrize(
    ("sizes", "devices", "pins"),
    [
        ((64, 64, 64), 8, {}),
        ((64, 6, 7), 8, {}),
        ((64, 64, 64), 6, {}),
        ((64, 64, 64), 8, {"data": 4, "storage": "optimizer"}),
        ((64, 64, 64), 8, {"groups": {1: "model", 3: None}}),
        ((64, 64, 64), 1, {}),
    ],
)
def test_every_plan_is_at_the_end_of_one_path_and_counted_once(sizes, devices, pins):
    space = PlanSpace.pinned(program(KINDS, sizes=sizes), Pins(devices, **pins))
    ends = every_end(space)
    assert len(set(ends)) == len(ends) == space.size
    assert sorted(ends, key=key) == sorted(space, key=key)
    assert all(end in space for end in ends)
    assert all(Pins(devices, **pins).allows(end) for end in ends)


def test_first_the_mesh_then_storage_then_groups_in_the_programs_order():
    space = PlanSpace.pinned(program(KINDS), Pins(8))
    partial, order = space.start(), []
    while choices := space.choices(partial):
        order.append(choices[0].kind if choices[0].group is None else choices[0].group.id)
        partial = choices[1].result
    assert order == ["mesh", "storage", 1, 2, 3]


def test_groups_that_the_axis_does_not_divide_are_left_whole():
    space = PlanSpace.pinned(program(KINDS, sizes=(64, 6, 7)), Pins(8))
    assert max(len(d.sharded) for d in space if d.model == 2) == 2
    assert {d.sharded for d in space if d.model == 4} == {frozenset({1})}


def test_meshes_that_do_not_divide_the_batch_are_masked():
    space = PlanSpace.pinned(program(KINDS, sizes=(48, 48, 48)), Pins(24))  # a batch of 64 over 24 devices
    choices = space.choices(space.start())
    data_of = {c.result.mesh[0]: c.valid for c in choices}
    assert data_of == {24: False, 12: False, 8: True, 6: False, 4: True, 3: False, 2: True, 1: True}


def test_pinned_groups_rule_out_meshes_that_cannot_shard_them():
    space = PlanSpace.pinned(program(KINDS, sizes=(4, 64, 64)), Pins(8, groups={1: "model"}))
    assert space.meshes == ((4, 2), (2, 4))
    assert all(1 in d.sharded for d in space)


def test_completions_are_the_two_ends():
    space = PlanSpace.pinned(program(KINDS, sizes=(64, 6, 64)), Pins(8))
    partial = Partial((2, 4), None, (False,))
    assert space.complete(partial, shard=False) == Decision(2, 4, frozenset({3}))
    assert space.complete(Partial((2, 4), None, (True,)), shard=False) == Decision(2, 4, frozenset({1}))
    assert space.complete(partial, shard=True) == Decision(2, 4, frozenset({3}), "state")


def test_a_model_axis_that_shards_nothing_is_no_plan():
    space = PlanSpace.pinned(program(KINDS, sizes=(64, 6, 64)), Pins(8, data=2))
    assert {d.sharded for d in space} == {frozenset({1}), frozenset({3}), frozenset({1, 3})}
    assert Decision(2, 4) not in space
    choices = space.choices(Partial((2, 4), "none", (False, False)))
    assert [c.valid for c in choices] == [False, True]
    assert PlanSpace.pinned(program(KINDS, sizes=(7, 6, 7)), Pins(8)).meshes == ((8, 1), (4, 2))


def test_groups_that_no_argument_has_a_dim_in_are_left_whole():
    alone = dataclasses.replace(program(KINDS), arguments=(0, 1, 2))
    assert set().union(*(d.sharded for d in PlanSpace.pinned(alone, Pins(8)))) == {1, 2}


def test_plans_of_another_space_are_not_in_it():
    space = PlanSpace.pinned(program(KINDS), Pins(8, data=4))
    assert Decision(4, 2, frozenset({1})) in space
    for other in (Decision(8, 1), Decision(1, 1), Decision(4, 2, frozenset({0})), Decision(4, 2, frozenset({9}))):
        assert other not in space
