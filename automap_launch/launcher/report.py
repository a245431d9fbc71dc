"""What the user reads about a launch that failed."""

from __future__ import annotations

from pathlib import Path

from automap_launch.launcher.failure import WorkerFailure
from automap_launch.run_folder import RunFolder

_LOG_LINES = 20
_LOG_BYTES = 1 << 14


def failure_report(failure: WorkerFailure, folder: RunFolder) -> str:
    """Some lines that say which rank failed, why, with which exit code, and where its log is."""
    where = f" at {failure.file}:{failure.line}" if failure.file else ""
    who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
    lines = [f"{who}{failure.message}{where} (exit code {failure.exit_code})"]
    if failure.hint:
        lines.append(f"hint: {failure.hint}")
    if failure.crash:
        lines.append(f"log: {folder.root / failure.traceback_path if failure.traceback_path else folder.logs}")
    return "\n".join(lines)


def failure_details(failure: WorkerFailure, folder: RunFolder) -> str:
    """The failed rank's traceback, or the end of its log; empty for what the terminal has shown already."""
    if not failure.crash or not failure.traceback_path or failure.rank == 0:
        return ""
    return failure.traceback or _tail(folder.root / failure.traceback_path)


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])
