"""Which devices a message's shards travel between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from automap_launch.runtime.channel import Message

Pair = tuple[int, int]  # of processes: sender, receiver


@dataclass(frozen=True)
class Lane:
    """One shard of one value on its way.

    Attributes:
      value: position in the message. shape: of the shard.
      source, target: devices. copies: further devices of the target's process that get the same shard from there.
    """

    value: int
    shape: tuple[int, ...]
    source: Any
    target: Any
    copies: tuple[Any, ...]


def lanes_of(message: Message) -> Mapping[Pair, tuple[Lane, ...]]:
    """Lanes by pair of processes. What a process already has, or gets once, it copies itself: a shard crosses from one
    process to another once."""
    found: dict[Pair, list[Lane]] = defaultdict(list)
    for position, (kind, source, target) in enumerate(
        zip(message.kinds, message.sources, message.targets, strict=True)
    ):
        indices = target.devices_indices_map(kind.shape)
        shape = target.shard_shape(kind.shape)
        pairs = list(zip(source.mesh.devices.flat, target.mesh.devices.flat, strict=True))
        alike: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
        for sender, receiver in pairs:
            cut = tuple((s.start, s.stop) for s in indices[receiver])
            alike[receiver.process_index, cut].append((sender, receiver))
        for (process, _), ends in alike.items():
            # The sort is stable: a sender in the same process first, else the first one.
            first, *others = sorted(ends, key=lambda pair: pair[0].process_index != process)
            lane = Lane(position, shape, *first, tuple(receiver for _, receiver in others))
            found[first[0].process_index, process].append(lane)
    return {pair: tuple(lanes) for pair, lanes in found.items()}
