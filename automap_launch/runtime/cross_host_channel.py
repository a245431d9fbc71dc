"""Messages between stages of several processes where JAX itself copies from host to host (GPU).

There `jax.device_put` of an array on one stage's devices to a sharding on another's is a transfer. JAX numbers these
transfers in each process by counting its calls, and the two ends meet by that number: *every* process makes the same
calls in the same order, with or without a part in them. The order is that of the step's messages, one list for all.

Not run on GPUs so far; its order of calls is tested with a transport that counts as JAX does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from automap_launch.errors import PlanError
from automap_launch.runtime.channel import Message
from automap_launch.runtime.placement import reshard
from automap_launch.runtime.schedules import Task


class Transport(Protocol):
    """What moves one message's arrays from the devices of its sources to those of its targets."""

    def move(self, message: Message, values: Sequence[jax.Array] | None) -> list[jax.Array]:
        """The arrays in their targets, perhaps still on their way. `values`: None in a process without a source."""


class DevicePut:
    """JAX's own copies."""

    def move(self, message: Message, values: Sequence[jax.Array] | None) -> list[jax.Array]:
        if values is None:
            arrays = [
                jax.make_array_from_single_device_arrays(kind.shape, source, [], dtype=np.dtype(kind.dtype))
                for kind, source in zip(message.kinds, message.sources, strict=True)
            ]
        else:
            arrays = [v if v.sharding == s else reshard(s)(v) for v, s in zip(values, message.sources, strict=True)]
        moved: list[jax.Array] = jax.device_put(arrays, list(message.targets))
        return moved


class CrossHostChannel:
    """All messages of a step, each moved by every process in its turn.

    A process that sends a message, or takes one, first makes the calls for all messages before it. What it has no part
    in costs it a call without data; such calls are made as soon as it is their turn, so that none is left at the end.

    Args:
      messages: of a step, in the order in which their senders hand them over; the same on all processes.
      transport: what moves them. own: this process's index; default: JAX's.

    Raises:
      PlanError: two stages that talk share several processes, between which JAX does not copy.
    """

    def __init__(self, messages: Sequence[Message], transport: Transport | None = None, own: int | None = None) -> None:
        self._transport = transport or DevicePut()
        self._own = jax.process_index() if own is None else own
        ends = {m.task: (_processes(m.sources), _processes(m.targets)) for m in messages}
        for task, (sources, targets) in ends.items():
            if sources == targets and len(sources) > 1:
                raise PlanError(
                    f"stages {task.stage} and {task.peer} both lie on processes {sorted(sources)}, and JAX copies only "
                    "between stages on different processes",
                    hint="give each stage whole processes: another number of stages, or of devices a process",
                )
        # Between devices of one process JAX copies without counting; others know nothing of it.
        self._across = [m for m in messages if ends[m.task][0] != ends[m.task][1]]
        self._place = {m.task: place for place, m in enumerate(self._across)}
        self._sends = {task for task, (sources, _) in ends.items() if self._own in sources}
        self._takes = {task for task, (_, targets) in ends.items() if self._own in targets}
        self._next = len(self._across)
        self._arrived: dict[Task, list[jax.Array]] = {}

    def begin(self) -> None:
        if self._next < len(self._across):
            raise RuntimeError(f"a step ended before {self._across[self._next].task} was moved")
        self._next = 0
        self._arrived.clear()
        self._pass_by()

    def send(self, message: Message, values: Sequence[jax.Array]) -> None:
        if message.task in self._place:
            self._catch_up(self._place[message.task])
            self._next += 1
        moved = self._transport.move(message, values)
        if message.task in self._takes:
            self._arrived[message.task] = moved
        self._pass_by()

    def receive(self, message: Message) -> list[jax.Array]:
        if message.task in self._place:
            self._catch_up(self._place[message.task] + 1)
            self._pass_by()
        return self._arrived.pop(message.task)

    def settle(self) -> None:
        """JAX keeps what it copies; the copies were dispatched before whatever overwrites their sources."""

    def _catch_up(self, place: int) -> None:
        """Moves the messages before `place` that are still to be moved; this process sends none of them."""
        while self._next < place:
            message = self._across[self._next]
            if message.task in self._sends:
                raise RuntimeError(f"{message.task} is to be sent before what comes after it in the step's order")
            self._next += 1
            moved = self._transport.move(message, None)
            if message.task in self._takes:
                self._arrived[message.task] = moved

    def _pass_by(self) -> None:
        """Moves the next messages as far as this process has no part in them."""
        while self._next < len(self._across):
            task = self._across[self._next].task
            if task in self._sends or task in self._takes:
                return
            self._catch_up(self._next + 1)


def _processes(shardings: Sequence[Any]) -> frozenset[int]:
    return frozenset(device.process_index for sharding in shardings for device in sharding.device_set)
