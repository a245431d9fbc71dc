"""What the user reads about a launch that failed."""

from __future__ import annotations

from pathlib import Path

from automap_launch.launcher.failure import WorkerFailure

_LOG_LINES = 20
_LOG_BYTES = 1 << 14


def failure_report(failure: WorkerFailure, log: Path | None) -> str:
    """Some lines that say which rank failed, why, with which exit code, and where its log is."""
    where = f" at {failure.file}:{failure.line}" if failure.file else ""
    who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
    lines = [f"{who}{failure.message}{where} (exit code {failure.exit_code})"]
    if failure.hint:
        lines.append(f"hint: {failure.hint}")
    if failure.crash and log is not None:
        lines.append(f"log: {log}")
    return "\n".join(lines)


def failure_details(failure: WorkerFailure, log: Path | None) -> str:
    """The failed rank's traceback, or the end of its log; empty for what the terminal has shown already."""
    if not failure.crash or failure.rank == 0:
        return ""
    return failure.traceback or _tail(log)


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])
