"""`summary.json`: the outcome of a run for tools around it (schema in docs/contract.md).

Written atomically from the moment the config is valid, at each change of phase, and at the end. A field that was not
reached is null, never absent.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from automap_launch.errors import AutomapError

SCHEMA = 1

_EMPTY: dict[str, Any] = {
    "schema": SCHEMA,
    "run_id": None,
    "mode": None,
    "phase": None,
    "status": "running",
    "exit_code": None,
    "started": None,
    "ended": None,
    "attempts": None,
    "error": None,
    "fingerprint": None,
    "frontend": None,
    "cluster": dict.fromkeys(("name", "digest", "platform", "hosts", "devices_per_host")),
    "plan": dict.fromkeys(("path", "mesh", "stages", "micro_batches", "schedule", "found_by")),
    "search": {
        **dict.fromkeys(("seconds", "evaluations", "episodes", "predicted_step_seconds")),
        "baselines": None,
        "agent": dict.fromkeys(("best_step_seconds", "seconds", "gap", "fine_tuned")),
        **dict.fromkeys(("optimum_step_seconds", "lower_bound_step_seconds", "gap", "cached", "verified", "trial")),
    },
    "train": dict.fromkeys(
        (
            "steps",
            "step_seconds_median",
            "examples_per_second",
            "tokens_per_second",
            "mfu",
            "processes",
            "devices",
        )
    ),
    "tracking": dict.fromkeys(("mode", "run_dir")),
}

ERROR_FIELDS = ("kind", "message", "rank", "host", "exit_code", "signal", "file", "line", "traceback_path")


class Summary:
    """The record and its file."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.record = copy.deepcopy(_EMPTY)
        self._told = False
        started = datetime.now(UTC)
        run_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self.update(run_id=run_id, mode=mode, phase="config", started=started.isoformat())

    def update(self, **fields: Any) -> None:
        """Sets top-level fields and writes the file. A dict is merged into a section field by field.

        A full disk is told once, and the launch goes on: training is worth more than its record.

        Raises:
          KeyError: a field that the schema does not have.
        """
        _merge(self.record, fields, "summary")
        self._write()

    def fail(self, error: AutomapError) -> None:
        """Records a failure of ours or of the script."""
        details = {name: getattr(error, name, None) for name in ERROR_FIELDS}
        self._end("failed", error.exit_code, {**details, "kind": error.kind, "message": error.message})

    def interrupt(self, signal_name: str, exit_code: int) -> None:
        """Records an end by a signal to the launcher."""
        details: dict[str, Any] = dict.fromkeys(ERROR_FIELDS)
        details |= {"kind": "signal", "message": f"interrupted by {signal_name}", "signal": signal_name}
        self._end("interrupted", exit_code, {**details, "exit_code": exit_code})

    def succeed(self) -> None:
        self._end("ok", 0, None)

    def _end(self, status: str, exit_code: int, error: dict[str, Any] | None) -> None:
        self.update(status=status, exit_code=exit_code, error=error, ended=datetime.now(UTC).isoformat())

    def _write(self) -> None:
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        text = json.dumps(self.record, indent=1, default=str) + "\n"
        try:
            partial.write_text(text)
            partial.replace(self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if not self._told:
                self._told = True
                print(f"automap-launch: cannot write {self.path}: {error.strerror}", file=sys.stderr)


def _merge(record: dict[str, Any], fields: dict[str, Any], where: str) -> None:
    for name, value in fields.items():
        if name not in record:
            raise KeyError(f"{where} has no field {name!r}, it has {', '.join(record)}")
        if isinstance(value, dict) and isinstance(record[name], dict):
            _merge(record[name], value, f"{where}.{name}")
        else:
            record[name] = value
