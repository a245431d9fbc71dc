"""`Decision`: the few choices that a search makes; a `Plan` is a decision spelled out, costed and named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Storage = Literal["none", "optimizer", "state"]

STORAGES: tuple[Storage, ...] = ("none", "optimizer", "state")


@dataclass(frozen=True)
class Decision:
    """One point of the search space of single-stage plans.

    Attributes:
      data: size of the mesh axis `data`, which shards the batch group.
      model: size of the mesh axis `model`, which shards every group in `sharded`. The axis `model` is the minor one.
      sharded: ids of the groups on the axis `model` (never the batch group).
      storage: what is stored sharded over `data` beyond its compute sharding (ZeRO): nothing, the optimizer's
        state, or all state.
    """

    data: int
    model: int
    sharded: frozenset[int] = frozenset()
    storage: Storage = "none"

    def __post_init__(self) -> None:
        if self.data < 1 or self.model < 1:
            raise ValueError(f"mesh axes have sizes of at least 1, got data={self.data} model={self.model}")
        if self.storage not in STORAGES:
            raise ValueError(f"storage is one of {', '.join(STORAGES)}, got {self.storage!r}")

    @property
    def devices(self) -> int:
        return self.data * self.model
