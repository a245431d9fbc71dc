"""`Execution`: what of a plan the runtime needs beyond shardings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from automap_launch.plan.plan import Plan
from automap_launch.program.blocks import MAX_BLOCKS


@dataclass(frozen=True)
class Execution:
    """How a step is cut in time and over stages.

    Attributes:
      stages, micro_batches, schedule: as in `Plan`. local_statistics: `allow_local_batch_stats`.
      blocks: for each stage, its first and its last block of `Program.blocks`; empty: as much work
        each as can be.
      max_blocks: `search.max_blocks` with which the blocks were made.
      devices: for each stage, indices into the devices of the launch; empty: consecutive ones.

    Raises:
      ValueError: `blocks` or `devices` are of another number of stages.
    """

    stages: int = 1
    micro_batches: int = 1
    schedule: str = "none"
    local_statistics: bool = False
    blocks: tuple[tuple[int, int], ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()
    max_blocks: int = MAX_BLOCKS

    def __post_init__(self) -> None:
        if self.stages < 1 or self.micro_batches < 1:
            raise ValueError(f"stages and micro_batches are at least 1, got {self.stages} and {self.micro_batches}")
        for name, given in (("blocks", self.blocks), ("devices", self.devices)):
            if given and len(given) != self.stages:
                raise ValueError(f"{name} are of {len(given)} stages, expected {self.stages}")

    @classmethod
    def of(cls, plan: Plan, max_blocks: int = MAX_BLOCKS) -> Execution:
        return cls(
            stages=len(plan.stages),
            micro_batches=plan.micro_batches,
            schedule=plan.schedule,
            local_statistics=plan.allow_local_batch_stats,
            blocks=tuple(stage.blocks for stage in plan.stages) if len(plan.stages) > 1 else (),
            devices=tuple(stage.devices for stage in plan.stages),
            max_blocks=max_blocks,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Execution:
        """From what `dataclasses.asdict` and JSON make of one."""
        pairs = {"blocks": tuple((first, last) for first, last in record["blocks"])}
        return cls(**{**record, **pairs, "devices": tuple(map(tuple, record["devices"]))})

    @property
    def is_split(self) -> bool:
        return self.stages > 1 or self.micro_batches > 1

    def devices_of(self, count: int) -> tuple[tuple[int, ...], ...]:
        """For each stage, indices into `count` devices.

        Raises:
          ValueError: the plan's devices are not there, or `count` does not divide by the stages.
        """
        if self.devices:
            missing = max(map(max, self.devices)) + 1
            if missing > count:
                raise ValueError(f"the plan has {missing} devices, and there are {count}")
            return self.devices
        if count % self.stages:
            raise ValueError(f"{count} devices cannot be divided among {self.stages} stages")
        size = count // self.stages
        return tuple(tuple(range(s * size, (s + 1) * size)) for s in range(self.stages))
