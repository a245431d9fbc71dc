"""A script with all that scripts do with their state, under plans with stages: it notices nothing.

The plans that run by default are one of each kind; `AUTOMAP_EVERY_PLAN=1` runs them all.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from automap_launch.plan.execution import Execution
from tests.launcher.test_worker import assert_ended_well, assert_same_numbers, script_in
from tests.launcher.workers import Worked, prepare, run_plainly, run_workers

pytestmark = pytest.mark.slow
EVERY_PLAN = bool(os.environ.get("AUTOMAP_EVERY_PLAN"))

MEGATRON = {
    **{f"{layer}/w": [None, "model"] for layer in range(0, 8, 2)},
    **{f"{layer}/b": ["model"] for layer in range(0, 8, 2)},
    **{f"{layer}/w": ["model", None] for layer in range(1, 8, 2)},
}

# Processes, mesh of a stage, execution, whether the state is donated. With four processes of two devices a stage lies
# in one process (4 x 2) or in two (2 x 4).
ALWAYS = {
    "hybrid, one process": (1, {"data": 2, "model": 2}, Execution(2, 2, "1f1b"), True),
    "hybrid, four processes": (4, {"data": 2, "model": 1}, Execution(4, 2, "1f1b"), False),
}
FURTHER = {
    "tensor parallel, one process": (1, {"data": 4, "model": 2}, Execution(), False),
    "accumulation, one process": (1, {"data": 4, "model": 2}, Execution(1, 4), False),
    "pipeline, one process": (1, {"data": 1, "model": 1}, Execution(8, 2, "gpipe"), False),
    "hybrid, not donated, one process": (1, {"data": 2, "model": 1}, Execution(4, 2, "1f1b"), False),
    "tensor parallel, four processes": (4, {"data": 4, "model": 2}, Execution(), False),
    "accumulation, four processes": (4, {"data": 8, "model": 1}, Execution(1, 2), True),
    "pipeline, four processes": (4, {"data": 1, "model": 1}, Execution(8, 2, "1f1b"), True),
    "stages over two processes": (4, {"data": 2, "model": 2}, Execution(2, 2, "zero_bubble"), True),
}


# Plans under which the checkpoints of a run are restored, besides one device.
RESTORED_UNDER = {
    "hybrid, four processes": ["hybrid, one process"],
    "hybrid, one process": ["hybrid, four processes"] if EVERY_PLAN else [],
    "tensor parallel, four processes": ["pipeline, four processes"],
    "pipeline, one process": ["tensor parallel, one process"],
    "pipeline, four processes": ["accumulation, four processes"],
}

Plain = Callable[[bool], tuple[Path, str]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """The script by itself, by whether it donates its state: the folder in which it ran, and what it printed."""

    @functools.cache
    def run_by_itself(donate: bool) -> tuple[Path, str]:
        script = script_in(tmp_path_factory.mktemp("plain") / "work", "full_training.py")
        return script.parent, run_plainly(script, ["donate"] if donate else [])

    return run_by_itself


def run(name: str, script: Path, run_dir: Path, *further: str) -> Worked:
    """Captures and runs the script under a plan."""
    processes, mesh, execution, donate = {**ALWAYS, **FURTHER}[name]
    args = [*(["donate"] if donate else []), *further]
    prepare(
        script,
        run_dir,
        step="train_step",
        carried={"0": "state"},
        mesh=mesh,
        compute=MEGATRON if mesh["model"] > 1 else {},
        args=args,
    )
    if not further:
        shutil.rmtree(script.parent / "checkpoint", ignore_errors=True)
    worked = run_workers(script, run_dir, processes, 8 // processes, args=args, execution=execution)
    assert_ended_well(worked)
    return worked


@pytest.mark.parametrize("name", [*ALWAYS, *(FURTHER if EVERY_PLAN else ())])
def test_a_script_notices_nothing(name: str, plain: Plain, tmp_path: Path) -> None:
    script = script_in(tmp_path / "work", "full_training.py")
    worked = run(name, script, tmp_path / "run")
    folder, expected = plain({**ALWAYS, **FURTHER}[name][-1])
    for output in worked.outputs:
        assert_same_numbers(output, expected)
    steps = [event for event in worked.events if event["event"] == "step"]
    assert [step["examples"] for step in steps[:3]] == [16, 16, 6]

    if others := RESTORED_UNDER.get(name):  # its checkpoints, on one device and under other plans
        resumed = run_plainly(folder / "full_training.py", ["resume"])
        assert_same_numbers(run_plainly(script, ["resume"]), resumed)
        for other in others:
            for output in run(other, script, tmp_path / other, "resume").outputs:
                assert_same_numbers(output, resumed)
