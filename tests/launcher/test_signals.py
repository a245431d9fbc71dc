"""Signals to a launcher process, and its sudden death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launcher.harness import Room, eventually, is_alive, make_room, nothing_left_of

# Two workers, each with a child, that wait for a signal. Rank 1's child has a process group of its own.
WAITING = """
child = subprocess.Popen(["sleep", "60"], process_group=0 if rank == 1 else None)
(run_dir / f"child_{rank}").write_text(str(child.pid))
touch(f"up_{rank}")
time.sleep(60)
"""


def end(launcher: subprocess.Popen[str]) -> int:
    with launcher:
        try:
            return launcher.wait(20)
        finally:
            launcher.kill()


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_a_signal_ends_everything(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    room = make_room(tmp_path, WAITING, processes=2)
    launcher = room.launcher_process(max_restarts=3)
    workers = room.wait_for("up_0", "up_1")
    launcher.send_signal(signum)
    assert end(launcher) == code
    assert nothing_left_of(workers)
    assert not any(map(is_alive, room.wait_for("child_0", "child_1")))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["attempts"] == 1, "no restart after the user has stopped the launch"
    assert result["failure"]["kind"] == "signal"
    assert result["failure"]["signal"] == signum.name
    assert f"{signum.name}: stopping ranks 0, 1" in room.printed()


def test_the_script_gets_ctrl_c_and_may_save(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        try:
            touch("up")
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(0.7)
            touch("saved")
        """,
    )
    launcher = room.launcher_process()
    room.wait_for("up")
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.1)  # two at the very same time would be one
    launcher.send_signal(signal.SIGINT)  # as `timeout` does: the launcher and its group
    assert end(launcher) == 130
    assert (tmp_path / "saved").exists()


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        signal.signal(signal.SIGINT, lambda *_: touch("asked"))
        touch("up")
        while True:
            time.sleep(60)
        """,
    )
    launcher = room.launcher_process(grace_period="30s")
    workers = room.wait_for("up")
    launcher.send_signal(signal.SIGINT)
    room.wait_for("asked")
    time.sleep(0.6)
    started = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert end(launcher) == 130
    assert time.monotonic() - started < 5
    assert nothing_left_of(workers)


def test_ctrl_c_while_a_failed_launch_is_stopped(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        if rank == 1:
            wait_for("up")
            os._exit(5)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: touch("asked"))
        touch("up")
        while True:
            time.sleep(60)
        """,
        processes=2,
    )
    launcher = room.launcher_process(grace_period="30s", max_restarts=3)
    room.wait_for("asked")
    started = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert end(launcher) == 5, "the failure came first"
    assert time.monotonic() - started < 5
    assert json.loads((tmp_path / "result.json").read_text())["attempts"] == 1


def test_a_signal_to_workers_and_launcher_alike_is_no_failure_of_a_worker(tmp_path: Path) -> None:
    """`scancel` signals every process of a job; a worker may be seen to end before the launcher's own signal."""
    room = make_room(
        tmp_path,
        """
        if rank == 1:
            signal.signal(signal.SIGTERM, lambda *_: touch("asked"))
        touch(f"up_{rank}")
        while not (run_dir / "told").exists():
            time.sleep(0.01)
        """,
        processes=2,
    )
    launcher = room.launcher_process(max_restarts=3)
    workers = room.wait_for("up_0", "up_1")
    os.kill(workers[0], signal.SIGTERM)
    room.wait_for("asked")
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    (tmp_path / "told").touch()
    assert end(launcher) == 143
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["failure"]["kind"], result["attempts"]) == ("signal", 1)


def test_user_signals_pass_through_to_the_workers_alone(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        got = []
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _: got.append(signal.Signals(number).name))
        child = subprocess.Popen(["sleep", "60"])  # would die of it
        touch(f"up_{rank}")
        while len(got) < 2:
            time.sleep(0.01)
        assert child.poll() is None
        child.kill()
        print(got)
        """,
        processes=2,
    )
    launcher = room.launcher_process()
    room.wait_for("up_0", "up_1")
    launcher.send_signal(signal.SIGUSR1)
    eventually(lambda: "passing SIGUSR1" in room.printed(), "SIGUSR1 passed on")
    launcher.send_signal(signal.SIGUSR2)
    assert end(launcher) == 0
    assert [room.log(rank) for rank in range(2)] == ["['SIGUSR1', 'SIGUSR2']\n"] * 2


def test_nohup_survives_a_hang_up(tmp_path: Path) -> None:
    room = make_room(tmp_path, "touch('up'); wait_for('go'); print('trained')")
    launcher = room.launcher_process(prefix=("nohup",))
    room.wait_for("up")
    launcher.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    (tmp_path / "go").touch()
    assert end(launcher) == 0
    assert room.log(0) == "trained\n"


def test_workers_have_no_stdin(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print(repr(sys.stdin.read()))")
    assert end(room.launcher_process()) == 0
    assert room.log(0) == "''\n"


def kill_launcher(room: Room) -> list[int]:
    """SIGKILLs a launcher while its workers run; returns their process ids."""
    launcher = room.launcher_process()
    workers = room.wait_for("up_0", "up_1")
    launcher.kill()
    assert end(launcher) == -signal.SIGKILL
    return workers


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    room = make_room(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING, processes=2)
    workers = kill_launcher(room)
    eventually(lambda: nothing_left_of(workers), "workers and their children are gone", 5)
    assert not any(map(is_alive, room.wait_for("child_0", "child_1")))


def test_the_guardian_itself_ends(tmp_path: Path) -> None:
    def guardians() -> set[int]:
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            if b"sessions.add" in command:
                found.add(int(path.parent.name))
        return {pid for pid in found if is_alive(pid)}

    before = guardians()
    room = make_room(tmp_path, WAITING, processes=2)
    kill_launcher(room)
    eventually(lambda: guardians() <= before, "the guardian of a killed launcher has ended", 5)
