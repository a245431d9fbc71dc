"""Which of several failures came first, and which only followed from it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from automap_launch.launcher.failure import FailureRecord, WorkerFailure

# What a rank reports when another one has gone: collectives of gloo and NCCL, and JAX's coordination service.
_DISTRIBUTED = re.compile(
    r"gloo|nccl|coordination ?service|coordination agent|heartbeat|preempt|barrier|distributed runtime"
    r"|connection (closed|reset|refused)|socket closed|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED",
    re.IGNORECASE,
)
# By its type or, since dispatch turns some statuses into a ValueError, by its status code (absl::StatusCode).
_RUNTIME_ERROR = re.compile(r"^(\S*(JaxRuntimeError|XlaRuntimeError)\b|\S+: [A-Z]+(_[A-Z]+)*: )")

_HINTS = {
    signal.SIGKILL: "SIGKILL comes from outside, most often from the kernel or the batch system for want of memory: "
    "see `dmesg | grep -i oom`, or lower the batch size",
    signal.SIGBUS: "most often a full /dev/shm or a truncated memory-mapped file",
    signal.SIGSEGV: "a crash in native code; the Python stack is at the end of the log",
}


@dataclass(frozen=True)
class Ending:
    """How one worker ended. `returncode` as `subprocess` gives it; `time` in seconds since the epoch."""

    rank: int
    returncode: int
    time: float
    record: FailureRecord | None = None


def root_cause(
    endings: Sequence[Ending],
    stopped_at: float | None,
    sent: Collection[signal.Signals],
    suspended: Collection[int],
    host: str,
) -> WorkerFailure | None:
    """The failure that the others followed from; None when no worker failed by itself.

    The earliest one, but a failure of the script's own, or a death by signal, before an error of the distributed
    runtime: that is what the neighbours of a rank that has gone report, and they may be seen first. Where several
    ranks fail alike, as they do when the script has an error, the lowest one stands for them.

    Args:
      endings: of all workers.
      stopped_at: when the supervisor began to stop the workers, seconds since the epoch; None: it did not.
      sent: the signals that it sent to stop them.
      suspended: ranks that were found suspended when the first worker failed.
      host: of the workers.
    """
    failed = [e for e in endings if e.returncode != 0 and not _stopped_by_us(e, stopped_at, sent)]
    if not failed:
        return None
    first = min(failed, key=lambda e: (_follows_from_another(e), _time(e)))
    left = [e.rank for e in endings if e.returncode == 0 and (stopped_at is None or e.time <= stopped_at)]
    if _follows_from_another(first) and left:
        # Workers that end well leave together.
        return WorkerFailure(
            kind="script",
            message="the process ended itself with exit code 0 (os._exit) while other ranks went on",
            rank=min(left),
            host=host,
            exit_code=1,
        )
    if _follows_from_another(first) and suspended:
        rank = min(suspended)
        return WorkerFailure(
            kind="worker",
            message="stopped answering: its process is suspended (SIGSTOP, or a debugger)",
            rank=rank,
            host=host,
            exit_code=exit_code(first.returncode),
        )
    alike = [e for e in failed if e.record and first.record and _what(e.record) == _what(first.record)]
    found = _failure(min(alike, key=lambda e: e.rank, default=first), host)
    return replace(found, time=_time(first), echo=_follows_from_another(first))


def first_of(failures: Iterable[WorkerFailure]) -> WorkerFailure | None:
    """The root cause among those that the hosts of a launch found, each among its own workers."""
    return min(failures, key=lambda failure: (failure.echo, failure.time), default=None)


def exit_code(returncode: int) -> int:
    """A process's exit code as a shell shows it: 128 + n for a death by signal n."""
    return 128 - returncode if returncode < 0 else returncode


def _failure(ending: Ending, host: str) -> WorkerFailure:
    record, code = ending.record, exit_code(ending.returncode)
    if record is not None:
        # What the script ended with: a rank that was still writing its last words may have been stopped meanwhile.
        return WorkerFailure(
            kind=record.kind,
            message=record.message,
            rank=ending.rank,
            host=record.host,
            exit_code=record.exit_code,
            file=record.file,
            line=record.line,
            traceback=record.traceback,
            crash=bool(record.traceback) or record.kind != "script",
        )
    if ending.returncode < 0:
        signum = signal.Signals(-ending.returncode)
        return WorkerFailure(
            kind="worker",
            message=f"killed by {signum.name}",
            rank=ending.rank,
            host=host,
            exit_code=code,
            signal=signum.name,
            hint=_HINTS.get(signum),
        )
    return WorkerFailure(
        kind="script",
        message="the process ended by itself",
        rank=ending.rank,
        host=host,
        exit_code=code,
    )


def _what(record: FailureRecord) -> tuple[str, str, str | None, int | None]:
    return record.kind, record.message, record.file, record.line


def _time(ending: Ending) -> float:
    return ending.record.time if ending.record else ending.time


def _stopped_by_us(ending: Ending, stopped_at: float | None, sent: Collection[signal.Signals]) -> bool:
    if stopped_at is None or _time(ending) <= stopped_at:
        return False
    return ending.record is not None or ending.returncode > 0 or -ending.returncode in sent


def _follows_from_another(ending: Ending) -> bool:
    if ending.record is not None:
        # A script's own ConnectionError is a cause; JAX's runtime error about a connection is none.
        ours = ending.record.kind == "worker" or _RUNTIME_ERROR.match(ending.record.message) is not None
        return ours and _DISTRIBUTED.search(ending.record.message) is not None
    return ending.returncode == -signal.SIGABRT
