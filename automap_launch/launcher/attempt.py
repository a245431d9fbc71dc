"""One start of all workers, from the first process to the last one gone."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from automap_launch.launcher import sessions
from automap_launch.launcher.environment import worker_environment
from automap_launch.launcher.failure import FailureRecord, WorkerFailure
from automap_launch.launcher.feed_reader import EventLines
from automap_launch.launcher.guardian import Guardian
from automap_launch.launcher.output import RankLog, TerminalWriter
from automap_launch.launcher.pipe_reader import PipeReader
from automap_launch.launcher.processes import Worker, WorkerExited
from automap_launch.launcher.root_cause import Ending, root_cause
from automap_launch.launcher.signals import PASSED_ON, SignalReceived
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.units import format_seconds

_POLL_SECONDS = 0.05  # while waiting for processes that are not our children
_KILLS, _KILL_SECONDS = 10, 0.5  # SIGKILL works at once, unless a process hangs in the kernel
_OUTPUT_SECONDS = 10.0  # for output that was written but not handled yet
_EVENTS_SECONDS = 30.0  # the same for events
# `timeout` and some process managers signal both the launcher and its process group: that is one Ctrl-C, not two.
_SAME_CTRL_C_SECONDS = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _WorkersMet:
    """This host's first rank has written its first event."""


@dataclass(frozen=True)
class OtherHostFailed:
    """The launcher of another host says so, or has gone."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
      failure: None when every worker ended with 0; of kind `signal` when a signal to the launcher ended it.
      told_to_stop: the launcher got such a signal, if only after a failure.
    """

    failure: WorkerFailure | None
    told_to_stop: bool


class Attempt:
    """Starts the workers, watches them, and stops all of them at the first failure or signal."""

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        command: Sequence[str],
        extra_environment: dict[str, str],
        grace_seconds: float,
        on_event: Callable[[dict[str, Any]], None],
        inbox: queue.SimpleQueue[Any],
        terminal: TerminalWriter,
        guardian: Guardian,
    ) -> None:
        self._spec = spec
        self._command = command
        self._extra = extra_environment
        self._grace = grace_seconds
        self._inbox = inbox
        self._terminal = terminal
        self._guardian = guardian
        self._on_event = on_event
        self._workers: list[Worker] = []
        self._feed: PipeReader | None = None
        self._events = EventLines(self._receive_event, terminal.say)
        self._met = False
        self._told_to_stop: SignalReceived | None = None
        self._interrupted = False  # by that signal, and not by a failure before it
        self._stopped_at: float | None = None
        self._sent: set[signal.Signals] = set()
        self._suspended: list[int] = []

    def run(self) -> Outcome:
        """Returns when no process of the workers is left.

        Raises:
          OSError: a worker could not be started; those that could have been stopped again.
        """
        late: WorkerFailure | None = None
        try:
            self._start()
            late = self._watch()
        finally:
            self._stop()
            self._close()
        cause = late or self._root_cause()
        told = self._told_to_stop
        # `scancel` and the like signal workers and launcher alike, and a worker may be seen to end first.
        if told and (self._interrupted or (cause and cause.exit_code == 128 + told.signum)):
            cause = _interruption(told.signum)
        return Outcome(cause, told_to_stop=told is not None)

    def _start(self) -> None:
        spec, folder = self._spec, self._spec.folder
        read_end, write_end = os.pipe()
        self._feed = PipeReader(read_end, self._events.feed, f"feed of rank {spec.ranks.start}")
        try:
            for rank in spec.ranks:
                log = RankLog(folder.rank_log(rank, spec.attempt), self._terminal.say)
                feed = write_end if rank == spec.ranks.start else None
                worker = Worker(
                    rank,
                    command=self._command,
                    environment=worker_environment(os.environ, spec, rank, self._extra, feed),
                    output=self._tee(log) if rank == 0 else log.write,
                    inbox=self._inbox,
                    feed=feed,
                )
                self._workers.append(worker)
                self._guardian.watch(worker.session)
                logger.info("started rank %d as process %d", rank, worker.session)
        finally:
            os.close(write_end)

    def _watch(self) -> WorkerFailure | None:
        """Waits for the end of all workers, or for a reason to stop them.

        Returns a failure when the workers did not meet in time.
        """
        deadline = time.monotonic() + self._spec.start_timeout_seconds
        while any(worker.running for worker in self._workers):
            try:
                message = self._inbox.get(timeout=None if self._met else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return self._late()
            match message:
                case WorkerExited(rank=rank, returncode=returncode):
                    logger.info("rank %d ended with %d", rank, returncode)
                    if returncode != 0:
                        self._suspended = [worker.rank for worker in self._workers if worker.is_suspended()]
                        return None
                case _WorkersMet():
                    self._met = True
                case OtherHostFailed():
                    return None
                case SignalReceived(signum=signum):
                    if signum in PASSED_ON:
                        self._pass_on(signum)
                    else:
                        self._told_to_stop = message
                        self._interrupted = True
                        return None
        return None

    def _stop(self) -> None:
        """Ends every process: by the first signal, after the grace period by SIGKILL, at once by a Ctrl-C."""
        clean = not self._interrupted and all(w.exit and w.exit.returncode == 0 for w in self._workers)
        if clean and self._wait_until_gone(self._grace):
            return  # what a script leaves in the background may finish within the grace period
        if left := self._left():
            signum = self._told_to_stop.signum if self._told_to_stop else signal.SIGTERM
            self._announce_stop(signum, left)
            self._stopped_at = time.time()
            self._send(signum)
            self._send(signal.SIGCONT)  # a suspended process could not act on it
            if not self._wait_until_gone(self._grace):
                self._terminal.say(f"killing what is left of {_ranks(self._left())}")
                for _ in range(_KILLS):  # a process may have been forked while the others were looked up
                    self._send(signal.SIGKILL)
                    if self._wait_until_gone(_KILL_SECONDS):
                        return
                self._terminal.say(f"SIGKILL did not end {_ranks(self._left())}: a process hangs in the kernel")

    def _wait_until_gone(self, seconds: float) -> bool:
        """False when something is left after `seconds`, or the user would not wait that long."""
        deadline = time.monotonic() + seconds
        while self._left():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                message = self._inbox.get(timeout=min(left, _POLL_SECONDS))
            except queue.Empty:
                continue
            if isinstance(message, SignalReceived):
                if message.signum in PASSED_ON:
                    self._pass_on(message.signum)
                    continue
                self._told_to_stop = self._told_to_stop or message
                if self._stopped_at is None:  # the workers are done: only what they left behind is waited for
                    return False
                if message.signum == signal.SIGINT and not self._same_ctrl_c(message):
                    return False
                if message.signum not in self._sent:
                    self._send(message.signum)
        return True

    def _left(self) -> list[int]:
        """Ranks of which any process still runs."""
        alive = sessions.members([worker.session for worker in self._workers])
        return [worker.rank for worker in self._workers if worker.running or alive[worker.session]]

    def _same_ctrl_c(self, message: SignalReceived) -> bool:
        first = self._told_to_stop
        return first is not None and message is not first and message.time - first.time < _SAME_CTRL_C_SECONDS

    def _send(self, signum: signal.Signals) -> None:
        self._sent.add(signum)
        for worker in self._workers:
            worker.send_to_all(signum)

    def _pass_on(self, signum: signal.Signals) -> None:
        self._terminal.say(f"passing {signum.name} on to the workers")
        for worker in self._workers:
            worker.send_to_worker(signum)

    def _announce_stop(self, signum: signal.Signals, left: Sequence[int]) -> None:
        reason = f"{signum.name}: " if self._told_to_stop else ""
        again = " again" if signum == signal.SIGINT else ""
        within = format_seconds(self._grace)
        self._terminal.say(f"{reason}stopping {_ranks(left)}, within {within}; Ctrl-C{again} kills at once")

    def _close(self) -> None:
        left = self._left()
        for worker in self._workers:
            worker.close(_OUTPUT_SECONDS)
            if worker.rank not in left:  # else the guardian tries once more when we are gone
                self._guardian.release(worker.session)
        if self._feed is not None and not self._feed.finish(_EVENTS_SECONDS):
            self._terminal.say(f"events of rank {self._spec.ranks.start} were lost: they were not handled in time")
        self._events.close()
        while not self._inbox.empty():  # nothing may be left for the next attempt
            message = self._inbox.get()
            if isinstance(message, SignalReceived) and message.signum not in PASSED_ON:
                self._told_to_stop = self._told_to_stop or message

    def _root_cause(self) -> WorkerFailure | None:
        endings = []
        for worker in self._workers:
            if worker.exit is not None:
                record = FailureRecord.load(self._spec.folder.rank_failure(worker.rank, self._spec.attempt))
                endings.append(Ending(worker.rank, worker.exit.returncode, worker.exit.time, record))
        return root_cause(endings, self._stopped_at, self._sent, self._suspended, socket.gethostname())

    def _late(self) -> WorkerFailure:
        seconds = format_seconds(self._spec.start_timeout_seconds)
        return WorkerFailure(
            kind="worker",
            message=f"the {self._spec.processes} workers had not met after {seconds}",
            host=socket.gethostname(),
            exit_code=1,
            hint="the logs show how far each one came; `launcher.start_timeout` is the limit",
        )

    def _receive_event(self, record: dict[str, Any]) -> None:
        if not self._met:
            self._inbox.put(_WorkersMet())
        self._on_event(record)

    def _tee(self, log: RankLog) -> Callable[[bytes], None]:
        def write(data: bytes) -> None:
            log.write(data)
            self._terminal.output(data)

        return write


def _interruption(signum: signal.Signals) -> WorkerFailure:
    return WorkerFailure(
        kind="signal",
        message=f"the launch was ended by {signum.name}",
        host=socket.gethostname(),
        exit_code=128 + signum,
        signal=signum.name,
        crash=False,
        time=time.time(),
    )


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
