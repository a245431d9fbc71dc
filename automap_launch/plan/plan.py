"""`Plan`: the decision, spelled out. A versioned YAML file that a person can read and edit (docs/contract.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from automap_launch.plan.decision import SCHEDULES

SCHEMA = 1


@dataclass(frozen=True)
class GroupChoice:
    """What was decided for a linkage group: the mesh axis that shards it, or None. `members`: parameter paths."""

    id: int
    axis: str | None
    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Stage:
    """A pipeline stage: its blocks (first and last, inclusive), its own mesh and its devices."""

    blocks: tuple[int, int]
    mesh: dict[str, int]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.blocks[0] <= self.blocks[1]:
            raise ValueError(f"blocks are the first and the last one of the stage, got {list(self.blocks)}")
        _check_mesh(self.mesh)


@dataclass(frozen=True)
class Memory:
    """Bytes a device holds at the peak of a step."""

    parameters: int
    optimizer: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.gradients + self.activations


@dataclass(frozen=True)
class Predicted:
    """Estimate of one step. Seconds: `step_seconds` is compute + communication + bubble."""

    step_seconds: float
    compute: float
    communication: float
    bubble: float
    memory_bytes_per_device: Memory


@dataclass(frozen=True)
class Origin:
    """Who found the plan, and at what cost."""

    searcher: str
    seed: int | None = None
    evaluations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ClusterId:
    """The cluster that a plan was made for: its name, and `Cluster.digest` of what the costs depend on."""

    name: str
    digest: str


@dataclass(frozen=True)
class Plan:
    """A plan for one program on one cluster.

    `mesh`: size by axis inside a stage, major axis first. `storage` maps a state path to the axis over which it is
    stored sharded where that differs from its compute sharding (ZeRO).
    """

    fingerprint: str
    cluster: ClusterId
    mesh: dict[str, int]
    groups: tuple[GroupChoice, ...]
    storage: dict[str, str]
    stages: tuple[Stage, ...]
    micro_batches: int
    schedule: str
    allow_local_batch_stats: bool
    predicted: Predicted
    origin: Origin
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        _check_mesh(self.mesh)
        ids = [group.id for group in self.groups]
        for group in self.groups:
            if ids.count(group.id) > 1:
                raise ValueError(f"group {group.id} is there twice")
            if group.axis is not None and group.axis not in self.mesh:
                raise ValueError(
                    f"group {group.id} is on the axis {group.axis!r}: the mesh has {', '.join(self.mesh)} (or null)"
                )
        for path, axis in self.storage.items():
            if axis not in self.mesh:
                raise ValueError(f"storage of {path} is on the axis {axis!r}: the mesh has {', '.join(self.mesh)}")
        if not self.stages:
            raise ValueError("stages is empty: a plan has at least one")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is {self.micro_batches}: it is at least 1")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}: expected one of {', '.join(SCHEDULES)}")


def _check_mesh(mesh: dict[str, int]) -> None:
    if not mesh:
        raise ValueError("mesh is empty: it names at least one axis")
    for axis, size in mesh.items():
        if size < 1:
            raise ValueError(f"mesh.{axis} is {size}: an axis has at least 1 device")
