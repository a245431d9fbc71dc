"""Which shards cross from process to process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from automap_launch.program.program import Value
from automap_launch.runtime.channel import Message
from automap_launch.runtime.lanes import lanes_of
from automap_launch.runtime.schedules import Task


@dataclass(frozen=True)
class Device:
    id: int
    process_index: int


@dataclass(frozen=True)
class Mesh:
    devices: Any


@dataclass(frozen=True)
class Sharding:
    """A vector of 8, whole on every device or cut over them: what `lanes_of` asks of a `NamedSharding`."""

    mesh: Any
    cut: bool

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice]]:
        size = self.shard_shape(shape)[0]
        starts = [k * size if self.cut else 0 for k in range(len(self.mesh.devices))]
        return {d: (slice(s, s + size),) for d, s in zip(self.mesh.devices, starts, strict=True)}

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // len(self.mesh.devices),) if self.cut else shape


def crossing(sender: list[int], receiver: list[int], *, cut: bool) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """By pair of processes: source, target and copies of each lane; devices `2 p` and `2 p + 1` are of process `p`."""
    sides = [
        Sharding(Mesh(np.array([Device(i, i // 2) for i in ids], dtype=object)), cut) for ids in (sender, receiver)
    ]
    message = Message(Task("send", 0, 0, 1, "forward"), (Value((8,), "float32"),), *((side,) for side in sides))
    return {
        pair: [(lane.source.id, lane.target.id, len(lane.copies)) for lane in lanes]
        for pair, lanes in lanes_of(message).items()
    }


def test_each_part_of_a_value_has_a_lane_of_its_own() -> None:
    assert crossing([0, 1], [2, 3], cut=True) == {(0, 1): [(0, 2, 0), (1, 3, 0)]}


def test_what_is_whole_crosses_once_a_process_and_is_copied_there() -> None:
    assert crossing([0, 1], [2, 3], cut=False) == {(0, 1): [(0, 2, 1)]}
    assert crossing([0, 1, 2, 3], [4, 5, 6, 7], cut=False) == {(0, 2): [(0, 4, 1)], (1, 3): [(2, 6, 1)]}


def test_what_a_process_has_already_does_not_cross() -> None:
    assert crossing([0, 2], [3, 1], cut=True) == {(0, 1): [(0, 3, 0)], (1, 0): [(2, 1, 0)]}
    assert crossing([0, 2], [1, 3], cut=True) == {(0, 0): [(0, 1, 0)], (1, 1): [(2, 3, 0)]}
    # Device 4 could send to 3, but 2 is in its process.
    assert crossing([4, 2], [3, 7], cut=False)[1, 3] == [(2, 7, 0)]
    assert crossing([4, 2], [6, 3], cut=False) == {(2, 3): [(4, 6, 0)], (1, 1): [(2, 3, 0)]}
