"""The config group `launcher`."""

from __future__ import annotations

from dataclasses import dataclass, field

from automap_launch.units import parse_duration


@dataclass
class LauncherConfig:
    """Worker processes, and the hosts that they run on.

    Attributes:
      processes: worker processes on each host.
      devices_per_process: devices of each; null: the host's devices shared out evenly.
      hosts: hosts of the launch, each with a launcher of its own; null: as Slurm, SkyPilot or Open MPI say, else 1.
      host: number of this host, from 0; null: as they say.
      coordinator: `HOST:PORT` of host 0, where the launchers meet; null: as they say.
      max_restarts: how often all workers are started anew after a failure.
      grace_period: time between the first signal and SIGKILL when workers are stopped.
      start_timeout: all workers must have met within this time.
      heartbeat_timeout: a worker silent for this long counts as lost.
      env: further environment variables of the workers.
    """

    processes: int = 1
    devices_per_process: int | None = None
    hosts: int | None = None
    host: int | None = None
    coordinator: str | None = None
    max_restarts: int = 0
    grace_period: str = "10s"
    start_timeout: str = "5m"
    heartbeat_timeout: str = "30s"
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("processes", "devices_per_process", "hosts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"launcher.{name} is at least 1, got {value}")
        if self.max_restarts < 0:
            raise ValueError(f"launcher.max_restarts is at least 0, got {self.max_restarts}")
        for name in ("grace_period", "start_timeout", "heartbeat_timeout"):
            parse_duration(getattr(self, name), f"launcher.{name}")
