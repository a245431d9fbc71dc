"""`LaunchSpec`: what a worker needs to know, as a JSON file in the run folder.

A worker is started as `python -m automap_launch.launcher.worker SPEC.json`. What differs between workers comes by
environment variables (`environment.py`); what is the same for all stands here.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automap_launch.plan.execution import Execution
from automap_launch.run_folder import RunFolder
from automap_launch.train_step import Entry

SCHEMA = 1


@dataclass(frozen=True)
class Rival:
    """Another plan, which is tried against the launch's own before training. `layout`: file of its layout."""

    name: str
    layout: str
    execution: Execution


@dataclass(frozen=True)
class LaunchSpec:
    """One launch, the same for all of its workers.

    Once all workers have met, rank 0 writes an event to its feed; the supervisor's start time-out runs until then.

    Args:
      run_dir: absolute path of the run folder.
      entry: the user's program and its own arguments.
      frontend: the config group `frontend` (`FrontendConfig`'s fields).
      platform: of the devices: `cpu`, `cuda`, `tpu`.
      processes: number of workers, those of all hosts.
      devices_per_process: devices of each worker.
      train_step: folder of the captured step (`TrainStep.load`).
      layout: file of the layout to run with. execution: how the step is cut in time and over stages.
      rivals: plans that are tried against that one on the devices; the fastest trains.
      heartbeat_seconds: a worker silent for this long counts as lost by the others.
      start_timeout_seconds: all workers must have met within this time.
      hosts: over how many hosts the workers are spread evenly. host: number of this one.
      coordinator: `host:port` on which rank 0 serves the rendezvous; the supervisor fills it in for each attempt.
      attempt: 0 for the first start, k for the k-th restart.
    """

    run_dir: str
    entry: Entry
    frontend: dict[str, Any]
    platform: str
    processes: int
    devices_per_process: int
    train_step: str
    layout: str
    execution: Execution = field(default_factory=Execution)
    rivals: tuple[Rival, ...] = ()
    heartbeat_seconds: float = 30.0
    start_timeout_seconds: float = 300.0
    hosts: int = 1
    host: int = 0
    coordinator: str = ""
    attempt: int = 0
    schema: int = field(default=SCHEMA)

    def __post_init__(self) -> None:
        for name in ("processes", "devices_per_process"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a launch is at least 1, got {getattr(self, name)}")
        if self.processes % self.hosts or not 0 <= self.host < self.hosts:
            raise ValueError(
                f"a launch has as many processes on each host, and its host is one of them, got "
                f"{self.processes} processes on {self.hosts} hosts, host {self.host}"
            )
        for name in ("heartbeat_seconds", "start_timeout_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} of a launch is above 0, got {getattr(self, name)}")
        if self.coordinator:
            host, _, port = self.coordinator.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"coordinator of a launch is `host:port`, got {self.coordinator!r}")
        if not Path(self.run_dir).is_absolute():
            raise ValueError(f"run_dir of a launch is an absolute path, got {self.run_dir!r}")

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.run_dir))

    @property
    def ranks(self) -> range:
        """Of the workers on this host; the first one reports to its launcher."""
        each = self.processes // self.hosts
        return range(self.host * each, (self.host + 1) * each)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> LaunchSpec:
        """Reads a file written by `save`.

        Raises:
          ValueError: it was written by another version.
        """
        record: dict[str, Any] = json.loads(path.read_text())
        if record.get("schema") != SCHEMA:
            raise ValueError(f"{path} has schema {record.get('schema')}, this version reads {SCHEMA}")
        entry, execution = record.pop("entry"), Execution.from_record(record.pop("execution"))
        rivals = tuple(
            Rival(**{**rival, "execution": Execution.from_record(rival["execution"])}) for rival in record.pop("rivals")
        )
        return cls(entry=Entry(**{**entry, "args": tuple(entry["args"])}), execution=execution, rivals=rivals, **record)
