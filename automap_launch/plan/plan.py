"""`Plan`: the decision, spelled out. A versioned YAML file that a person can read and edit (docs/contract.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

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
class Plan:
    """A plan for one program on one cluster.

    `cluster` holds `name` and `digest`; `storage` maps a state path to the axis over which it is stored sharded
    where that differs from its compute sharding (ZeRO).
    """

    fingerprint: str
    cluster: dict[str, str]
    mesh: dict[str, int]
    groups: tuple[GroupChoice, ...]
    storage: dict[str, str]
    stages: tuple[Stage, ...]
    micro_batches: int
    schedule: str
    predicted: Predicted
    origin: Origin
    allow_local_batch_stats: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA
