"""Messages between stages of several processes where JAX itself copies from host to host (GPU)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from automap_launch.runtime.channel import Message
from automap_launch.runtime.placement import reshard
from automap_launch.runtime.schedules import Task


class CrossHostChannel:
    """`jax.device_put` from the sender's devices to the receiver's, called by both with the same array.

    Both sides of a pair of processes call in the order in which messages are handed over: before it receives one, a
    process takes those that were to be received earlier.

    Args:
      messages: of a step, in the order in which their senders hand them over; the same on all processes.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._incoming = [m for m in messages if m.targets and m.targets[0].has_addressable_devices]
        self._place = {message.task: place for place, message in enumerate(self._incoming)}
        self._taken = 0
        self._arrived: dict[Task, list[jax.Array]] = {}

    def begin(self) -> None:
        self._taken = 0
        self._arrived.clear()

    def send(self, message: Message, values: Sequence[jax.Array]) -> None:
        arrays = [v if v.sharding == s else reshard(s)(v) for v, s in zip(values, message.sources, strict=True)]
        moved = jax.device_put(arrays, list(message.targets))
        if message.task in self._place and message.sources[0].has_addressable_devices:
            self._arrived[message.task] = moved

    def receive(self, message: Message) -> list[jax.Array]:
        for earlier in self._incoming[self._taken : self._place[message.task] + 1]:
            if earlier.task not in self._arrived:
                self._arrived[earlier.task] = self._take(earlier)
        self._taken = max(self._taken, self._place[message.task] + 1)
        return self._arrived.pop(message.task)

    def settle(self) -> None:
        """JAX keeps what it copies; the copies were dispatched before whatever overwrites their sources."""

    @staticmethod
    def _take(message: Message) -> list[jax.Array]:
        there = [
            jax.make_array_from_single_device_arrays(kind.shape, source, [], dtype=np.dtype(kind.dtype))
            for kind, source in zip(message.kinds, message.sources, strict=True)
        ]
        moved: list[jax.Array] = jax.device_put(there, list(message.targets))
        return moved
