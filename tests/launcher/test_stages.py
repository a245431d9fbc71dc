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
from tests.launcher.workers import prepare, run_plainly, run_workers

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], str]:
    """What the script prints by itself, by whether it donates its state."""

    @functools.cache
    def run(donate: bool) -> str:
        script = script_in(tmp_path_factory.mktemp("plain") / "work", "full_training.py")
        return run_plainly(script, ["donate"] if donate else [])

    return run


@pytest.mark.parametrize("name", [*ALWAYS, *(FURTHER if os.environ.get("AUTOMAP_EVERY_PLAN") else ())])
def test_a_script_notices_nothing(name: str, plain: Callable[[bool], str], tmp_path: Path) -> None:
    processes, mesh, execution, donate = {**ALWAYS, **FURTHER}[name]
    script = script_in(tmp_path / "work", "full_training.py")
    args = ["donate"] if donate else []
    prepare(
        script,
        tmp_path / "run",
        step="train_step",
        carried={"0": "state"},
        mesh=mesh,
        compute=MEGATRON if mesh["model"] > 1 else {},
        args=args,
    )
    shutil.rmtree(script.parent / "checkpoint", ignore_errors=True)
    worked = run_workers(script, tmp_path / "run", processes, 8 // processes, args=args, execution=execution)
    assert_ended_well(worked)
    for output in worked.outputs:
        assert_same_numbers(output, plain(donate))
    steps = [event for event in worked.events if event["event"] == "step"]
    assert [step["examples"] for step in steps[:3]] == [16, 16, 6]
