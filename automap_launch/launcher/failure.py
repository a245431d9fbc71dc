"""A failing worker's last words (`FailureRecord`) and what the supervisor makes of them (`WorkerFailure`)."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD_KINDS = ("script", "worker", "config", "capture", "plan", "internal")


@dataclass(frozen=True)
class FailureRecord:
    """Why a worker leaves, written by the worker itself as `logs/rank_N.failure.json` just before `os._exit`.

    Args:
      rank, host: of the worker.
      time: of the failure, seconds since the epoch: orders the failures of several ranks.
      kind: `script`: the user's program raised or called `sys.exit`. `worker`: the worker around it failed.
        Otherwise the `kind` of an `AutomapError` raised in the worker.
      message: `ValueError: bad batch`, begins with the exception's type; `sys.exit(3)`.
      exit_code: that the worker leaves with.
      file, line: the user's own line.
      traceback: the user's frames, as text; empty for `sys.exit`, which is no crash.
    """

    rank: int
    host: str
    time: float
    kind: str
    message: str
    exit_code: int
    file: str | None = None
    line: int | None = None
    traceback: str = ""

    def __post_init__(self) -> None:
        if self.kind not in RECORD_KINDS:
            raise ValueError(f"kind of a failure is one of {', '.join(RECORD_KINDS)}, got {self.kind!r}")

    def save(self, path: Path) -> None:
        """Writes the record atomically; a failure to write goes to stderr, for a full disk must not keep a worker."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(dataclasses.asdict(self), indent=1))
            temporary.replace(path)
        except OSError as error:
            print(f"automap-launch: cannot write {path}: {error}", file=sys.stderr, flush=True)

    @classmethod
    def load(cls, path: Path) -> FailureRecord | None:
        """The record in `path`; None where there is none, or none that can be read."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class WorkerFailure:
    """The root cause of a launch that did not end well: `error` of `summary.json`, and the traceback's text.

    `kind` is `signal` when the launcher itself was told to stop, else as in `FailureRecord`. `signal` is a name
    (`SIGKILL`). `traceback_path` is relative to the run folder. `crash` is False when nothing went wrong: the script
    called `sys.exit`, or the user stopped the launch. `time`: seconds since the epoch. `echo`: most likely it only
    followed from another rank's failure, on another host. `traceback_path` of another host's rank is a path there.
    """

    kind: str
    message: str
    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    file: str | None = None
    line: int | None = None
    traceback_path: str | None = None
    traceback: str = ""
    hint: str | None = None
    crash: bool = True
    time: float = 0.0
    echo: bool = False

    def error(self) -> dict[str, Any]:
        """`error` of `summary.json` (docs/contract.md)."""
        names = ("kind", "message", "rank", "host", "exit_code", "signal", "file", "line", "traceback_path")
        return {name: getattr(self, name) for name in names}
