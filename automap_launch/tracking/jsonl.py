"""`metrics.jsonl` and `search.jsonl`: what is always written, whatever else fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from automap_launch.tracking.backend import Backend, Metrics
from automap_launch.tracking.events import strict


class LineFile:
    """A file of JSON lines. Each line is handed to the system at once, so a crash loses none.

    A line that cannot be written (a full disk) is lost: the first one is reported, writing goes on as soon as there
    is room again, and the file never holds half a line followed by another.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """Opens `path` for appending. A folder that cannot be written to counts as a full disk."""
        self._path = path
        self._warn = warn
        self._torn = False
        self._descriptor: int | None = None
        self.lost = 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            self._lose(error)

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends `record`. Numbers that JSON has no notation for become words (`events.strict`)."""
        if self._descriptor is None:
            self.lost += 1
            return
        line = json.dumps(strict(dict(record)), default=str, allow_nan=False).encode() + b"\n"
        data = b"\n" + line if self._torn else line
        try:
            while data:
                written = os.write(self._descriptor, data)
                self._torn = written < len(data)
                data = data[written:]
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lose(self, error: OSError) -> None:
        self.lost += 1
        if self.lost == 1:
            self._warn(f"cannot write {self._path}: {error.strerror}; training goes on, its measurements are lost")


class JsonlBackend(Backend):
    """Appends to `metrics` what every backend gets, and to `search` the search in full."""

    name = "jsonl"

    def __init__(self, metrics: Path, search: Path, warn: Callable[[str], None]) -> None:
        self._metrics = LineFile(metrics, warn)
        self._search = LineFile(search, warn)

    def metrics(self, values: Metrics) -> None:
        self._metrics.write({"time": time.time(), **values})

    def search(self, record: Mapping[str, Any]) -> None:
        self._search.write({"time": time.time(), **record})

    def summary(self, values: Mapping[str, Any]) -> None:
        self._metrics.write({"time": time.time(), "summary": dict(values)})

    def close(self, exit_code: int) -> None:
        self._metrics.close()
        self._search.close()
