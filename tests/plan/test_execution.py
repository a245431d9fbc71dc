"""What the runtime takes of a plan."""

from __future__ import annotations

import dataclasses
import json

import pytest

from automap_launch.plan.execution import Execution
from automap_launch.plan.plan import ClusterId, Memory, Origin, Plan, Predicted, Stage

MESH = {"data": 2, "model": 1}


def plan(*stages: Stage, **changed: object) -> Plan:
    settings: dict[str, object] = {"micro_batches": 4, "schedule": "1f1b", "allow_local_batch_stats": False, **changed}
    return Plan(
        fingerprint="f",
        cluster=ClusterId("local", "d"),
        mesh=MESH,
        groups=(),
        storage={},
        stages=stages,
        predicted=Predicted(1.0, 1.0, 0.0, 0.0, Memory(0, 0, 0, 0)),
        origin=Origin("hand"),
        **settings,  # type: ignore[arg-type]
    )


def test_a_plan_says_how_its_step_is_cut() -> None:
    execution = Execution.of(plan(Stage((0, 1), MESH, (0, 1)), Stage((2, 5), MESH, (2, 3))))
    assert execution == Execution(2, 4, "1f1b", False, ((0, 1), (2, 5)), ((0, 1), (2, 3)))
    assert execution.is_split
    assert Execution.from_record(json.loads(json.dumps(dataclasses.asdict(execution)))) == execution


def test_one_stage_has_no_cuts() -> None:
    execution = Execution.of(plan(Stage((0, 5), MESH, (0, 1)), micro_batches=1, schedule="none"))
    assert execution.blocks == ()
    assert not execution.is_split


def test_devices_of_stages() -> None:
    assert Execution(stages=2).devices_of(4) == ((0, 1), (2, 3))
    assert Execution(stages=2, devices=((3,), (1,))).devices_of(4) == ((3,), (1,))
    with pytest.raises(ValueError, match="5 devices cannot be divided among 2 stages"):
        Execution(stages=2).devices_of(5)
    with pytest.raises(ValueError, match="the plan has 4 devices, and there are 2"):
        Execution(stages=2, devices=((3,), (1,))).devices_of(2)


def test_blocks_of_another_number_of_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks are of 1 stages, expected 2"):
        Execution(stages=2, blocks=((0, 1),))
