"""What the user reads about a launch that failed."""

from __future__ import annotations

from pathlib import Path

from automap_launch.launcher.failure import WorkerFailure

_LOG_LINES = 20
_LOG_BYTES = 1 << 14


def failure_report(failure: WorkerFailure, log: Path | None, *, on_terminal: bool) -> str:
    """The root cause as text: its traceback, or the end of its log, then one line that says it all.

    Args:
      log: the failed rank's log; None when no rank is to blame.
      on_terminal: its output was seen on the terminal, so that nothing of it is repeated here.
    """
    parts = []
    quiet = failure.kind == "script" and not failure.traceback  # `sys.exit(N)` is no crash
    if not on_terminal and not quiet:
        parts.append(failure.traceback.rstrip() or _tail(log))
    where = f" at {failure.file}:{failure.line}" if failure.file else ""
    who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
    parts.append(f"{who}{failure.message}{where} (exit code {failure.exit_code})")
    if failure.hint:
        parts.append(f"hint: {failure.hint}")
    if log is not None and not quiet:
        parts.append(f"log: {log}")
    return "\n".join(part for part in parts if part)


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])
