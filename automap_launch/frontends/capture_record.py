"""What the launcher tells the capturing process, and what comes back: two JSON files."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from automap_launch.errors import AutomapError, CaptureError, ConfigError
from automap_launch.train_step import Entry


@dataclass(frozen=True)
class CaptureTask:
    """What to capture.

    Attributes:
      kind, step_name, materialize_limit: see `FrontendConfig`.
      platforms: to lower for, `cpu` first.
      folder: receives the `TrainStep`; `record` the outcome; `scratch` what the script writes.
    """

    entry: Entry
    kind: str
    step_name: str | None
    materialize_limit: str
    platforms: tuple[str, ...]
    folder: str
    record: str
    scratch: str

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> CaptureTask:
        entry = record["entry"]
        return cls(
            **{
                **record,
                "entry": Entry(entry["script"], entry["module"], tuple(entry["args"])),
                "platforms": tuple(record["platforms"]),
            }
        )


@dataclass(frozen=True)
class CaptureRecord:
    """How a capture ended: a step that is saved, a refusal (`capture`, `config`), a full `disk`, a failure of the
    script or of ours."""

    outcome: Literal["step", "capture", "config", "disk", "script", "internal"]
    message: str = ""
    hint: str | None = None
    file: str | None = None
    line: int | None = None
    text: str = ""
    exit_code: int = 1

    @classmethod
    def of_error(cls, error: AutomapError) -> CaptureRecord:
        known: dict[type[AutomapError], Literal["capture", "config"]] = {CaptureError: "capture", ConfigError: "config"}
        return cls(known.get(type(error), "internal"), error.message, error.hint, error.file, error.line)

    def save(self, path: Path) -> None:
        """Writes the record in one go: a reader sees all of it or nothing."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(dataclasses.asdict(self)))
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path) -> CaptureRecord:
        return cls(**json.loads(path.read_text()))
