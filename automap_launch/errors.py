"""Failures that the user can act on, and the exit code that each one ends the launcher with.

Every message says what was got, what was expected and how to mend it. `kind` is `error.kind` of `summary.json`
(docs/contract.md) and tells our failures from the script's own.
"""

from __future__ import annotations


class AutomapError(Exception):
    """Base of every failure with a message for the user. Not raised itself."""

    kind: str = "internal"
    exit_code: int = 1
    reported: bool = False  # the user has been shown it already

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.file = file
        self.line = line


class ConfigError(AutomapError):
    """The command line or a config file is wrong."""

    kind = "config"
    exit_code = 2


class ClusterMismatchError(AutomapError):
    """The plan is for another cluster than the machine at hand."""

    kind = "plan"
    exit_code = 4


class CaptureError(AutomapError):
    """No train step could be captured from the script."""

    kind = "capture"
    exit_code = 5


class PlanError(AutomapError):
    """A plan was refused: it does not match the script, a pin is impossible, or the file is damaged."""

    kind = "plan"
    exit_code = 6


class NoPlanFitsError(AutomapError):
    """Every plan needs more memory than a device has."""

    kind = "plan"
    exit_code = 7


class ScriptError(AutomapError):
    """The user's script ended itself, by an exception or by `sys.exit`."""

    kind = "script"

    def __init__(
        self,
        message: str,
        *,
        exit_code: int,
        rank: int | None = None,
        host: str | None = None,
        signal: str | None = None,
        traceback_path: str | None = None,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint, file=file, line=line)
        self.exit_code = exit_code
        self.rank = rank
        self.host = host
        self.signal = signal
        self.traceback_path = traceback_path


class WorkerError(ScriptError):
    """A worker died by no doing of the script: killed by a signal, cut off, or lost."""

    kind = "worker"
