"""`Decision`: the few choices that a search makes; a `Plan` is a decision spelled out, costed and named."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Storage = Literal["none", "optimizer", "state"]
Schedule = Literal["none", "gpipe", "1f1b", "zero_bubble"]

STORAGES: tuple[Storage, ...] = ("none", "optimizer", "state")
# `none`: one stage. The others order the micro-batches of a pipeline.
SCHEDULES: tuple[Schedule, ...] = ("none", "gpipe", "1f1b", "zero_bubble")


@dataclass(frozen=True)
class Decision:
    """One point of the search space. Every stage has a mesh of the same shape, and the same groups on it.

    Attributes:
      data: size of the mesh axis `data`, which shards the batch group.
      model: size of the mesh axis `model`, which shards every group in `sharded`. The axis `model` is the minor one.
      sharded: ids of the groups on the axis `model` (never the batch group).
      storage: what is stored sharded over `data` beyond its compute sharding (ZeRO): nothing, the optimizer's
        state, or all state.
      micro_batches: into which the batch is cut; in a single stage their gradients are accumulated.
      cuts: for each stage after the first, its first block (of `Program.blocks`); empty: one stage.
      schedule: the order of the micro-batches in a pipeline; `none` in one stage.
    """

    data: int
    model: int
    sharded: frozenset[int] = frozenset()
    storage: Storage = "none"
    micro_batches: int = 1
    cuts: tuple[int, ...] = ()
    schedule: Schedule = "none"

    def __post_init__(self) -> None:
        if self.data < 1 or self.model < 1:
            raise ValueError(f"mesh axes have sizes of at least 1, got data={self.data} model={self.model}")
        if self.storage not in STORAGES:
            raise ValueError(f"storage is one of {', '.join(STORAGES)}, got {self.storage!r}")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is at least 1, got {self.micro_batches}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if (self.schedule == "none") != (not self.cuts):
            raise ValueError(f"a pipeline has a schedule, one stage has none; got {self.schedule} and cuts {self.cuts}")
        if any(b <= a for a, b in pairwise((0, *self.cuts))):
            raise ValueError(f"cuts are blocks above 0 in ascending order, got {self.cuts}")

    @property
    def stages(self) -> int:
        return len(self.cuts) + 1

    @property
    def devices(self) -> int:
        return self.stages * self.data * self.model
