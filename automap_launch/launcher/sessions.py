"""All processes of a worker: itself and what it started, told by the session that it leads."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

PROC = Path("/proc")


def members(sessions: Collection[int]) -> dict[int, list[int]]:
    """Live processes of each session, by the id of the process that began it.

    Zombies do not count: nobody may be there to reap an orphan. Without `/proc` only the session's first process
    group is seen, and stands for all of its members.
    """
    found: dict[int, list[int]] = {session: [] for session in sessions}
    if not PROC.joinpath("self/stat").exists():
        for session, pids in found.items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(session, 0)
                pids.append(session)
        return found
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            state, _, session = _stat(folder)
            if session in found and state not in "ZX":
                found[session].append(int(folder.name))
    return found


def send(session: int, signum: signal.Signals) -> None:
    """Sends a signal to every process of the session; those in a process group of their own get it one by one."""
    if not (pids := members([session])[session]):
        return  # never to a number that may mean somebody else by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signum)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != session:
                os.kill(pid, signum)


def is_suspended(pid: int) -> bool:
    """Whether the process was stopped, by SIGSTOP or a debugger."""
    return _stat(PROC / str(pid))[0] in "tT"


def _stat(folder: Path) -> tuple[str, int, int]:
    """State, process group and session in `/proc/PID/stat`; as of a dead process when it is gone."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", -1, -1
    return fields[0], int(fields[2]), int(fields[3])
