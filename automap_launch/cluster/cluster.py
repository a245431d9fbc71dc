"""`Cluster`: hosts, their devices, and the links between them. Pure data; `detect` and `calibrate` measure it.

Devices are numbered host by host: device `i` is on host `i // devices_per_host`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from automap_launch.cluster.curves import Curves

SCHEMA = 1

PLATFORMS = ("cpu", "cuda", "tpu")

Scope = Literal["device", "host", "network"]


@dataclass(frozen=True)
class Device:
    """One accelerator.

    `peak_flops`: floating-point operations a second by dtype (numpy names: `float32`, `bfloat16`); a dtype that is
    not named runs at the rate of `float32`. `memory_bytes`: usable bytes. `memory_bandwidth`: bytes a second.
    """

    name: str
    peak_flops: dict[str, float]
    memory_bytes: int
    memory_bandwidth: float

    def __post_init__(self) -> None:
        if "float32" not in self.peak_flops:
            raise ValueError(f"device.peak_flops of {self.name} needs float32, got {sorted(self.peak_flops)}")
        for dtype, value in self.peak_flops.items():
            if value <= 0:
                raise ValueError(f"device.peak_flops.{dtype} of {self.name} is {value}: it must be above 0")
        for what, value in [("memory_bytes", self.memory_bytes), ("memory_bandwidth", self.memory_bandwidth)]:
            if value <= 0:
                raise ValueError(f"device.{what} of {self.name} is {value}: it must be above 0")


@dataclass(frozen=True)
class Link:
    """Alpha-beta model of a link: a message of n bytes takes `alpha_s + n * beta_s_per_byte` seconds.

    `host`: between devices of one host. `network`: between hosts, for each device's share of the host's card.
    `device`: within one device; it costs nothing where it is not given.
    """

    scope: Scope
    alpha_s: float
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        for what, value in [("alpha_s", self.alpha_s), ("beta_s_per_byte", self.beta_s_per_byte)]:
            if value < 0:
                raise ValueError(f"{what} of the link of scope {self.scope} is {value}: it must not be below 0")


@dataclass(frozen=True)
class Cluster:
    """Hosts x devices, with what a device and each kind of link can do."""

    name: str
    platform: str
    hosts: int
    devices_per_host: int
    device: Device
    links: tuple[Link, ...]
    curves: Curves = field(default_factory=Curves)
    source: str = ""

    def __post_init__(self) -> None:
        if self.platform not in PLATFORMS:
            raise ValueError(
                f"platform of cluster {self.name} is {self.platform!r}: expected one of {', '.join(PLATFORMS)}"
            )
        if self.hosts < 1 or self.devices_per_host < 1:
            raise ValueError(
                f"a cluster has at least one host with one device, got {self.hosts}x{self.devices_per_host}"
            )
        scopes = [link.scope for link in self.links]
        if len(scopes) != len(set(scopes)):
            raise ValueError(f"links of cluster {self.name} name a scope twice: {scopes}")
        if self.devices_per_host > 1 and "host" not in scopes:
            raise ValueError(f"cluster {self.name} has several devices a host: it needs a link of scope `host`")
        if self.hosts > 1 and "network" not in scopes:
            raise ValueError(f"cluster {self.name} has several hosts: it needs a link of scope `network`")

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def digest(self) -> str:
        """Identifies what a plan's cost depends on; 16 hexadecimal digits. Name and source do not count."""
        record = {k: v for k, v in asdict(self).items() if k not in ("name", "source")}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self) -> str:
        """`v100_4x8 (cuda, 4 hosts x 8 devices)`: as messages name it."""
        hosts = f"{self.hosts} host" + ("s" if self.hosts > 1 else "")
        devices = f"{self.devices_per_host} device" + ("s" if self.devices_per_host > 1 else "")
        return f"{self.name} ({self.platform}, {hosts} x {devices})"

    def link(self, scope: Scope) -> Link:
        for link in self.links:
            if link.scope == scope:
                return link
        raise KeyError(f"cluster {self.name} has no link of scope `{scope}`")
