"""The config group `cluster`: a cluster file's content or name, or `local` with what shall be detected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from automap_launch.cluster.cluster import PLATFORMS

_DESCRIPTION = ("hosts", "devices_per_host", "device", "links")


@dataclass
class ClusterConfig:
    """Either a whole cluster file (docs/contract.md), or this machine, to be detected (`cluster=local`).

    Attributes:
      file: a cluster file; nothing else is then given or detected.
      platform: `cpu`, `cuda` or `tpu`; for a machine to be detected also `auto`.
      devices: for a machine to be detected, how many of its devices to use; null: all.
      hosts, devices_per_host, device, links, curves, source: the fields of a cluster file; null: to be detected.
    """

    schema: int = 1
    name: str = "local"
    platform: str = "auto"
    file: str | None = None
    devices: int | None = None
    hosts: int | None = None
    devices_per_host: int | None = None
    device: dict[str, Any] | None = None
    links: list[Any] | None = None
    curves: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if self.platform not in ("auto", *PLATFORMS):
            raise ValueError(f"cluster.platform is one of auto, {', '.join(PLATFORMS)}, got {self.platform!r}")
        if self.devices is not None and self.devices < 1:
            raise ValueError(f"cluster.devices is at least 1, got {self.devices}")
        if self.file is not None and self.devices is not None:
            raise ValueError(
                f"cluster.devices={self.devices} is for a machine to be detected, cluster.file={self.file} says how "
                "many there are. If a recipe set it, add cluster.devices=null"
            )
        given = [name for name in _DESCRIPTION if getattr(self, name) is not None]
        missing = [name for name in _DESCRIPTION if getattr(self, name) is None]
        if given and missing:
            raise ValueError(f"cluster {self.name} names {', '.join(given)} but not {', '.join(missing)}")
        if given and self.platform == "auto":
            raise ValueError(
                f"cluster.platform of {self.name} is one of {', '.join(PLATFORMS)}: auto is for cluster=local"
            )
        if given and self.devices is not None:
            raise ValueError(
                f"cluster.devices={self.devices} goes with cluster=local alone: "
                f"{self.name} has {self.hosts} x {self.devices_per_host} devices. "
                "If a recipe set it, add cluster.devices=null"
            )

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, to be detected."""
        return self.hosts is None and self.file is None
