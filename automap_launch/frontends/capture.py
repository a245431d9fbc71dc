"""Capture as the launcher sees it: a script goes in, its `TrainStep` comes out. Imports no JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from automap_launch.errors import AutomapError, CaptureError, ConfigError, ScriptError
from automap_launch.frontends.capture_record import CaptureRecord, CaptureTask
from automap_launch.frontends.config import FrontendConfig
from automap_launch.train_step import Entry, TrainStep
from automap_launch.units import parse_duration

_LOG_LINES = 15
# The script sees one CPU device; its windows stay off.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    "MPLBACKEND": "Agg",
    "PYTHONUNBUFFERED": "1",
}


def capture(entry: Entry, config: FrontendConfig, platforms: Sequence[str], folder: Path, log: Path) -> TrainStep:
    """Runs the script up to its train step, in a process of its own on CPU, and captures the step.

    Args:
      platforms: to lower for; `cpu` is always among them.
      folder: receives the step (`TrainStep.load`).
      log: receives what the script prints.

    Raises:
      CaptureError: no train step could be captured.
      ConfigError: there is no such script or module.
      ScriptError: the script ended itself before its first step.
    """
    if entry.script is not None and not Path(entry.script).is_file():
        what = "is a folder, not a script" if Path(entry.script).is_dir() else "does not exist"
        raise ConfigError(f"the script {entry.script} {what} (looked in {os.getcwd()})", hint="check its path")
    log.parent.mkdir(parents=True, exist_ok=True)
    seconds = parse_duration(config.capture_timeout)
    with tempfile.TemporaryDirectory(prefix="automap_capture_") as scratch, log.open("wb") as output:
        record_file = Path(scratch) / "record.json"
        task = CaptureTask(
            entry=entry,
            kind=config.kind,
            step_name=config.step,
            materialize_limit=config.materialize_limit,
            platforms=tuple(dict.fromkeys(("cpu", *platforms))),
            folder=str(folder.resolve()),
            record=str(record_file),
            scratch=str(Path(scratch) / "files"),
        )
        # The child is ended in the middle of things: what it would have removed at its end is removed with `scratch`.
        temporary = Path(scratch) / "temporary"
        temporary.mkdir()
        task_file = Path(scratch) / "task.json"
        task_file.write_text(json.dumps(dataclasses.asdict(task)))
        child = subprocess.Popen(
            # -P: the folder that the launcher was started in is on the import path only if the script's own would be.
            [sys.executable, "-P", "-m", "automap_launch.frontends.capture_child", str(task_file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT, "TMPDIR": str(temporary)},
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CaptureError(
                f"the script reached no train step within frontend.capture_timeout={config.capture_timeout}\n"
                f"  the end of its output ({log}):\n{_tail(log)}",
                hint="raise frontend.capture_timeout, or have the script do less before its first step",
            ) from None
        finally:
            _end(child)
        if not record_file.exists():
            raise _vanished(code, log)
        record = CaptureRecord.load(record_file)
    if record.outcome == "step":
        return TrainStep.load(folder)
    raise _error(record, log)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and every process that the script started."""
    with contextlib.suppress(ProcessLookupError):  # all may have ended by themselves
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _error(record: CaptureRecord, log: Path) -> AutomapError:
    if record.outcome == "script":
        return ScriptError(
            f"the script ended before its first train step: {record.message}",
            exit_code=record.exit_code,
            traceback_path=str(log),
            hint=record.text.rstrip() or None,
            file=record.file,
            line=record.line,
        )
    if record.outcome == "capture":
        return CaptureError(record.message, hint=record.hint, file=record.file, line=record.line)
    if record.outcome == "config":
        return ConfigError(record.message, hint=record.hint)
    if record.outcome == "disk":
        return AutomapError(record.message, hint="free some space, or name another folder: hydra.run.dir=FOLDER")
    return AutomapError(f"capturing failed, which is a defect of automap-launch:\n{record.message}")


def _vanished(code: int, log: Path) -> ScriptError:
    if code < 0:
        what = f"was ended by signal {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            what += ", often for lack of memory"
    else:
        what = f"ended its process with exit code {code} (os._exit)"
    return ScriptError(
        f"the script {what} before its first train step\n  the end of its output ({log}):\n{_tail(log)}",
        exit_code=128 - code if code < 0 else code or 1,
        traceback_path=str(log),
    )


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(f"    {line}" for line in lines) or "    (none)"
