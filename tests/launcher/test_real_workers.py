"""The supervisor with the real worker: two processes that meet through JAX's coordination service."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from automap_launch.launcher import supervisor
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.run_folder import RunFolder
from automap_launch.train_step import Entry
from tests.launcher.harness import Room, eventually, nothing_left_of
from tests.launcher.workers import HERE, prepare

SCRIPT = HERE / "failing.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "prepared"
    prepare(SCRIPT, folder, step="train_step", carried={"0": "w"}, mesh={"data": 2}, args=["-"])
    return folder


def make_real_room(prepared: Path, run_dir: Path, how: str) -> Room:
    spec = LaunchSpec(
        run_dir=str(run_dir),
        entry=Entry(script=str(SCRIPT), args=(how,)),
        frontend={},
        platform="cpu",
        processes=2,
        devices_per_process=1,
        train_step=str(prepared / "train_step"),
        layout=str(prepared / "layout.json"),
    )
    return Room(RunFolder(run_dir), 2, given=spec, command=supervisor.WORKER_COMMAND)


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
    ("how", "code", "message"),
    [
        ("raise", 1, "ValueError: bad batch"),
        ("kill", 137, "killed by SIGKILL"),
        ("exit", 3, "the script called sys.exit(3)"),
    ],
)
def test_the_cause_is_rank_1(prepared: Path, run_dir: Path, how: str, code: int, message: str) -> None:
    room = make_real_room(prepared, run_dir, how)
    result = room.launch(grace_period="20s")
    shown = room.terminal.getvalue()
    assert result.exit_code == code, shown
    assert result.failure is not None
    assert (result.failure.rank, result.failure.message) == (1, message)
    assert "step 2 " in shown
    assert room.events[0]["event"] == "ready"
    if how == "raise":
        assert result.failure.file == str(SCRIPT)
        assert 'raise ValueError("bad batch")' in shown
        assert "automap_launch/" not in result.failure.traceback


def test_sigterm_ends_real_workers_long_before_the_grace_period(prepared: Path, run_dir: Path) -> None:
    room = make_real_room(prepared, run_dir, "-")
    launcher = room.launcher_process(grace_period="30s")
    try:
        workers = [process_of(room, rank) for rank in range(2)]
        started = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(25) == 143
        assert time.monotonic() - started < 20
    finally:
        launcher.kill()
        launcher.communicate()
    assert nothing_left_of(workers)
