"""A process that outlives a killed launcher just long enough to kill its workers, and all that they started.

The kernel's `PR_SET_PDEATHSIG` reaches only a worker itself. The guardian holds the read end of a pipe whose write
end dies with the launcher, however that ends.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import Any

# Runs by itself, without this package, so that it starts in milliseconds.
_PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sessions = set()
for line in sys.stdin:
    (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
def session_of(pid):
    try:
        return os.getsid(pid)
    except OSError:
        return None
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
strays = [pid for pid in pids if session_of(pid) in sessions]
for kill, targets in ((os.killpg, sessions), (os.kill, strays)):
    for target in targets:
        try:
            kill(target, signal.SIGKILL)
        except OSError:
            pass
"""


class Guardian:
    """Kills the watched sessions when this process ends without having released them."""

    def __enter__(self) -> Guardian:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def watch(self, session: int) -> None:
        self._tell(f"+{session}\n")

    def release(self, session: int) -> None:
        self._tell(f"-{session}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the launch works without
            self._process.stdin.write(line)
            self._process.stdin.flush()
