from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from automap_launch.launcher import sessions
from tests.launcher.harness import eventually


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """A shell that leads a session of three: itself and two children, one in a process group of its own."""
    process = subprocess.Popen(["bash", "-c", "sleep 60 & set -m; sleep 60 & wait"], start_new_session=True)
    yield process
    sessions.send(process.pid, signal.SIGKILL)
    process.wait()


def count(session: int) -> int:
    return len(sessions.members([session])[session])


def test_members_and_send(shell: subprocess.Popen[bytes]) -> None:
    eventually(lambda: count(shell.pid) == 3, "the shell has started both children")
    sessions.send(shell.pid, signal.SIGKILL)
    eventually(lambda: count(shell.pid) == 0, "all three are gone; the zombie does not count")
    assert shell.wait() == -signal.SIGKILL


def test_is_suspended(shell: subprocess.Popen[bytes]) -> None:
    assert not sessions.is_suspended(shell.pid)
    shell.send_signal(signal.SIGSTOP)
    eventually(lambda: sessions.is_suspended(shell.pid), "the shell is suspended")


def test_without_proc(shell: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "PROC", tmp_path)
    assert sessions.members([shell.pid]) == {shell.pid: [shell.pid]}
    sessions.send(shell.pid, signal.SIGKILL)
    assert shell.wait() == -signal.SIGKILL
