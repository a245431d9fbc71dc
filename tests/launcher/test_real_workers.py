"""The supervisor with the real worker: processes that meet through JAX's coordination service."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from automap_launch.launcher import supervisor
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.plan.execution import Execution
from automap_launch.run_folder import RunFolder
from automap_launch.train_step import Entry
from tests.launcher.harness import Room, eventually, nothing_left_of
from tests.launcher.workers import HERE, prepare

SCRIPT = HERE / "failing.py"

pytestmark = pytest.mark.slow
every_plan = pytest.mark.skipif(not os.environ.get("AUTOMAP_EVERY_PLAN"), reason="runs with AUTOMAP_EVERY_PLAN=1")


@dataclass(frozen=True)
class Way:
    """How the step is run: in how many processes of one device each, a stage's mesh, and stages."""

    processes: int
    mesh: dict[str, int]
    execution: Execution


WHOLE = Way(2, {"data": 2}, Execution())
PIPELINE = Way(4, {"data": 1}, Execution(4, 2, "1f1b"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Way], Path]:
    root = tmp_path_factory.mktemp("real")

    @functools.cache
    def run_folder(processes: int) -> Path:
        way = {w.processes: w for w in (WHOLE, PIPELINE)}[processes]
        folder = root / f"prepared_{processes}"
        prepare(SCRIPT, folder, step="train_step", carried={"0": "weights"}, mesh=way.mesh, args=["-"])
        return folder

    return lambda way: run_folder(way.processes)


def make_real_room(prepared: Callable[[Way], Path], run_dir: Path, how: str, way: Way = WHOLE) -> Room:
    spec = LaunchSpec(
        run_dir=str(run_dir),
        entry=Entry(script=str(SCRIPT), args=(how,)),
        frontend={},
        platform="cpu",
        processes=way.processes,
        devices_per_process=1,
        train_step=str(prepared(way) / "train_step"),
        layout=str(prepared(way) / "layout.json"),
        execution=way.execution,
    )
    return Room(RunFolder(run_dir), way.processes, given=spec, command=supervisor.WORKER_COMMAND)


def process_of(room: Room, rank: int) -> int:
    """The worker's process id; waits until it has made some steps."""
    log = room.folder.rank_log(rank)
    eventually(lambda: log.exists() and "step 3 " in log.read_text(), f"rank {rank} has made steps", seconds=60)
    return int(log.read_text().partition("pid ")[2].partition("\n")[0])


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("how", "way"),
    [
        pytest.param("raise", WHOLE, id="raise"),
        pytest.param("exit", WHOLE, id="exit"),
        pytest.param("kill", WHOLE, id="kill", marks=every_plan),
        # A stage that is lost leaves its neighbours waiting for messages, in threads of their own.
        pytest.param("raise", PIPELINE, id="raise in a pipeline"),
        pytest.param("kill", PIPELINE, id="kill in a pipeline"),
    ],
)
def test_the_cause_is_rank_1(prepared: Callable[[Way], Path], run_dir: Path, how: str, way: Way) -> None:
    code, message = {
        "raise": (1, "ValueError: bad batch"),
        "exit": (3, "the script called sys.exit(3)"),
        "kill": (137, "killed by SIGKILL"),
    }[how]
    room = make_real_room(prepared, run_dir, how, way)
    result = room.launch(grace_period="40s")
    ended = time.time()
    shown = room.terminal.getvalue()
    assert result.exit_code == code, shown
    assert result.failure is not None
    assert (result.failure.rank, result.failure.message) == (1, message)
    logs = [room.log(rank) for rank in range(way.processes)]
    # Nobody waits for the lost rank until a timeout, and all are gone.
    failed = float(logs[1].partition("fails at ")[2].split()[0])
    assert ended - failed < 30
    assert nothing_left_of([int(log.partition("pid ")[2].split()[0]) for log in logs if "pid " in log])
    assert "step 2 " in shown
    assert room.events[0]["event"] == "ready"
    if how == "raise":
        line = SCRIPT.read_text().splitlines().index('        raise ValueError("bad batch")') + 1
        assert (result.failure.file, result.failure.line) == (str(SCRIPT), line)
        assert 'raise ValueError("bad batch")' in shown
        assert "automap_launch/" not in result.failure.traceback


@pytest.mark.parametrize(
    ("signum", "code", "way"),
    [
        pytest.param(signal.SIGTERM, 143, WHOLE, id="SIGTERM", marks=every_plan),
        pytest.param(signal.SIGINT, 130, PIPELINE, id="Ctrl-C in a pipeline"),
    ],
)
def test_a_signal_ends_real_workers_long_before_the_grace_period(
    prepared: Callable[[Way], Path], run_dir: Path, signum: signal.Signals, code: int, way: Way
) -> None:
    room = make_real_room(prepared, run_dir, "-", way)
    launcher = room.launcher_process(grace_period="30s")
    try:
        workers = [process_of(room, rank) for rank in range(way.processes)]
        started = time.monotonic()
        launcher.send_signal(signum)
        assert launcher.wait(25) == code
        assert time.monotonic() - started < 20
    finally:
        launcher.kill()
        launcher.communicate()
    assert nothing_left_of(workers)
