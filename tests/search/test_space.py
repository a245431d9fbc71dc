import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.search.config import PruningConfig
from automap_launch.search.space import Partial, PlanSpace
from automap_launch.search.synthetic import Distribution, draw
from tests.search.synthetic import program

KINDS = ("parameter", "parameter", "activation")
SMALL = Distribution(products=(1, 1), inner_groups=(1, 1), hosts=(0, 0), devices_per_host=(2, 2), divisors=(2, 2))


def every_end(space: PlanSpace) -> list[Decision]:
    """The plan at the end of every valid path."""
    ends, open_ = [], [space.start()]
    while open_:
        partial = open_.pop()
        choices = space.choices(partial)
        if not choices:
            ends.append(space.complete(partial, "plain"))
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
    assert {head.mesh for head in space.heads} == {(4, 2), (2, 4)}
    assert all(1 in d.sharded for d in space)


def decided(mesh: tuple[int, int], storage: str | None = None, groups: tuple[bool, ...] = ()) -> Partial:
    return Partial(1, 1, "none", mesh, storage, groups)


def test_completions_are_the_two_ends():
    space = PlanSpace.pinned(program(KINDS, sizes=(64, 6, 64)), Pins(8))
    partial = decided((2, 4), None, (False,))
    assert space.complete(partial) == Decision(2, 4, frozenset({3}))
    assert space.complete(decided((2, 4), None, (True,))) == Decision(2, 4, frozenset({1}))
    assert space.complete(partial, "full") == Decision(2, 4, frozenset({3}), "state")


def test_a_model_axis_that_shards_nothing_is_no_plan():
    space = PlanSpace.pinned(program(KINDS, sizes=(64, 6, 64)), Pins(8, data=2))
    assert {d.sharded for d in space} == {frozenset({1}), frozenset({3}), frozenset({1, 3})}
    assert Decision(2, 4) not in space
    choices = space.choices(decided((2, 4), "none", (False, False)))
    assert [c.valid for c in choices] == [False, True]
    space = PlanSpace.pinned(program(KINDS, sizes=(7, 6, 7)), Pins(8))
    assert {head.mesh for head in space.heads} == {(8, 1), (4, 2)}


def test_groups_that_no_argument_has_a_dim_in_are_left_whole():
    alone = dataclasses.replace(program(KINDS), arguments=(0, 1, 2), parameters=(1, 2))
    assert set().union(*(d.sharded for d in PlanSpace.pinned(alone, Pins(8)))) == {1, 2}


def test_plans_of_another_space_are_not_in_it():
    space = PlanSpace.pinned(program(KINDS), Pins(8, data=4))
    assert Decision(4, 2, frozenset({1})) in space
    for other in (Decision(8, 1), Decision(1, 1), Decision(4, 2, frozenset({0})), Decision(4, 2, frozenset({9}))):
        assert other not in space


def pipelined(blocks: int = 5, batch: int = 8, window: int | None = None, **pins) -> PlanSpace:
    model = draw(np.random.default_rng(3), replace(SMALL, blocks=(blocks, blocks), batch=(3, 3)))
    return PlanSpace(model.program, replace(model.pins, **pins), PruningConfig(balance_window=window))


def test_every_pipeline_is_at_the_end_of_one_path_and_counted_once():
    space = pipelined()
    ends = every_end(space)
    assert len(set(ends)) == len(ends) == space.size
    assert set(ends) == set(space)
    assert {d.stages for d in ends} == {1, 2, 4}
    assert {d.schedule for d in ends} == {"none", "gpipe", "1f1b", "zero_bubble"}
    assert all(d.devices == space.devices and d in space and space.pins.allows(d) for d in ends)


def test_one_micro_batch_has_one_schedule():
    assert {d.schedule for d in pipelined() if d.micro_batches == 1 and d.stages > 1} == {"gpipe"}


def test_cuts_are_decided_last_and_one_after_the_other():
    space = pipelined(stages=4, micro_batches=2, schedule="1f1b")
    partial, kinds = space.start(), []
    while choices := space.choices(partial):
        kinds.append(choices[0].kind)
        partial = next(c for c in choices if c.valid).result
    assert kinds[-2:] == ["cut", "cut"]
    assert "stages" not in kinds
    assert len(space.complete(partial).cuts) == 3


def test_pinned_cuts_are_kept():
    space = pipelined(cuts=(2,), stages=2)
    assert {d.cuts for d in space} == {(2,)}
    assert {d.cuts for d in every_end(space)} == {(2,)}
    assert space.size == len(list(space))


def test_the_window_keeps_cuts_near_the_balance():
    wide, narrow = pipelined(20), pipelined(20, window=1)
    assert wide.partition.candidates((), 4) == tuple(range(1, 18))
    near = narrow.partition.candidates((), 4)
    balance = narrow.partition.balanced((), 4)[0]
    assert {balance, 1} <= set(near) < set(range(1, 18))
    assert wide.size == narrow.size


def test_a_group_that_larger_ones_leave_no_tensor_stays_whole():
    one_weight = program(("parameter", "parameter"))
    one_weight = dataclasses.replace(one_weight, dim_groups=((0,), (1,), (1, 2)), arguments=(0, 2), parameters=(1,))
    sets = {d.sharded for d in PlanSpace(one_weight, Pins(4, data=1))}
    assert sets == {frozenset({1}), frozenset({2})}
