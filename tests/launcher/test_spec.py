from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from automap_launch.launcher.spec import LaunchSpec, Rival
from automap_launch.plan.execution import Execution
from automap_launch.train_step import Entry

SPEC = LaunchSpec(
    run_dir="/runs/1",
    entry=Entry(script="train.py", args=("--lr", "1e-3")),
    frontend={"step": None, "world": "single"},
    platform="cpu",
    processes=2,
    devices_per_process=4,
    train_step="/runs/1/train_step",
    layout="/runs/1/layout.json",
    execution=Execution(2, 4, "1f1b", blocks=((0, 1), (2, 3)), devices=((0, 1, 2, 3), (4, 5, 6, 7))),
    rivals=(Rival("data_parallel", "/runs/1/trial/data_parallel.layout.json", Execution(1, 2)),),
    coordinator="127.0.0.1:4711",
)


def test_save_and_load(tmp_path: Path) -> None:
    SPEC.save(tmp_path / "launch.json")
    assert LaunchSpec.load(tmp_path / "launch.json") == SPEC


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    SPEC.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(ValueError, match="schema 99"):
        LaunchSpec.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"processes": 0}, "processes of a launch is at least 1, got 0"),
        ({"devices_per_process": 0}, "devices_per_process"),
        ({"heartbeat_seconds": 0.0}, "heartbeat_seconds of a launch is above 0"),
        ({"start_timeout_seconds": -1.0}, "start_timeout_seconds"),
        ({"coordinator": "localhost"}, "`host:port`, got 'localhost'"),
        ({"run_dir": "runs/1"}, "absolute path, got 'runs/1'"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SPEC, **change)  # type: ignore[arg-type]
