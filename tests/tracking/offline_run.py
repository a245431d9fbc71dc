"""Reads the file of an offline W&B run: a LevelDB log of protobuf records, after a header of 7 bytes.

Format: https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEADER = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """What a run recorded."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)  # by metric or glob
    artifacts: list[tuple[str, list[str]]] = field(default_factory=list)  # type, names of the files
    exit_code: int | None = None


def read_offline_run(folder: Path) -> OfflineRun:
    """The run in `folder` (`offline-run-*`); as far as it was written, if it is still being written.

    Raises:
      ValueError: its file is of another format.
    """
    from wandb.proto import wandb_internal_pb2

    run = OfflineRun()
    (path,) = folder.glob("run-*.wandb")
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.run_id, run.project = record.run.run_id, record.run.project
            run.name, run.tags = record.run.display_name, list(record.run.tags)
            run.config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        elif kind == "history":
            run.history.append({_key(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "summary":
            run.summary.update({_key(item): json.loads(item.value_json) for item in record.summary.update})
        elif kind == "metric":
            run.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind in ("artifact", "request"):
            artifact = record.artifact if kind == "artifact" else record.request.log_artifact.artifact
            if artifact.type:
                run.artifacts.append((artifact.type, [entry.path for entry in artifact.manifest.contents]))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def _records(data: bytes) -> Iterator[bytes]:
    if data[:4] != b":W&B":
        raise ValueError(f"no W&B run: it begins with {data[:4]!r}")
    at, parts = _HEADER, b""
    while at < len(data):
        left = _BLOCK - at % _BLOCK
        if at + _HEADER > len(data):
            return
        if left < _HEADER:  # too short for a header: padding
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEADER])
        at += _HEADER
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            raise ValueError(f"damaged at byte {at}")
        if at + length > len(data):
            return
        parts += data[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
