"""One worker process, with everything that it started."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from automap_launch.launcher import sessions
from automap_launch.launcher.pipe_reader import PipeReader


@dataclass(frozen=True)
class WorkerExited:
    """`returncode` as `subprocess` gives it: -n for a death by signal n. `time`: seconds since the epoch."""

    rank: int
    returncode: int
    time: float


class Worker:
    """Started at construction, as the leader of its own session: a Ctrl-C at the terminal does not reach it.

    stdout and stderr share one pipe, so that the log keeps the order in which the worker wrote.
    """

    def __init__(
        self,
        rank: int,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: Callable[[bytes], None],
        inbox: queue.SimpleQueue[Any],
        feed: int | None = None,
    ) -> None:
        """`output` gets the worker's output; `feed` is a file descriptor passed on to it.

        Raises:
          OSError: the process cannot be started.
        """
        self.rank = rank
        self.exit: WorkerExited | None = None
        self._inbox = inbox
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                pass_fds=() if feed is None else (feed,),
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._output = PipeReader(read_end, output, f"output of rank {rank}")
        self._watcher = threading.Thread(target=self._watch, name=f"watch rank {rank}", daemon=True)
        self._watcher.start()

    @property
    def session(self) -> int:
        """Id of the worker process, and of the session that it leads."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the worker process itself has not ended yet."""
        return self.exit is None

    def is_suspended(self) -> bool:
        return self.running and sessions.is_suspended(self.session)

    def send_to_all(self, signum: signal.Signals) -> None:
        """Sends a signal to the worker and to all that it started."""
        sessions.send(self.session, signum)

    def send_to_worker(self, signum: signal.Signals) -> None:
        """Sends a signal to the worker process alone."""
        self._process.send_signal(signum)

    def close(self, timeout: float) -> None:
        """Reads the output written so far. Call it when no process of the session is left."""
        self._watcher.join(timeout)
        self._output.finish(timeout)

    def _watch(self) -> None:
        returncode = self._process.wait()
        self.exit = WorkerExited(self.rank, returncode, time.time())
        self._inbox.put(self.exit)
