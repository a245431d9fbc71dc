from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from automap_launch.launcher import sessions
from tests.launcher.harness import eventually


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a session of three: itself and two children, one in a process group of its own."""
    code = """
import subprocess, time
subprocess.Popen(["sleep", "60"])
subprocess.Popen(["sleep", "60"], process_group=0)
print("up", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    sessions.send(process.pid, signal.SIGKILL)
    process.wait()


def count(session: int) -> int:
    return len(sessions.members([session])[session])


def test_members_and_send(leader: subprocess.Popen[bytes]) -> None:
    assert count(leader.pid) == 3
    sessions.send(leader.pid, signal.SIGKILL)
    eventually(lambda: count(leader.pid) == 0, "all three are gone; the zombie does not count")
    assert leader.wait() == -signal.SIGKILL


def test_is_suspended(leader: subprocess.Popen[bytes]) -> None:
    assert not sessions.is_suspended(leader.pid)
    leader.send_signal(signal.SIGSTOP)
    eventually(lambda: sessions.is_suspended(leader.pid), "the leader is suspended")


def test_without_proc(leader: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "PROC", tmp_path)
    assert sessions.members([leader.pid]) == {leader.pid: [leader.pid]}
    sessions.send(leader.pid, signal.SIGKILL)
    assert leader.wait() == -signal.SIGKILL
