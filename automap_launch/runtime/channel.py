"""How values get from one stage to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
from jax.sharding import NamedSharding

from automap_launch.program.program import Value
from automap_launch.runtime.schedules import Task


@dataclass(frozen=True)
class Message:
    """What one task hands to another stage.

    Attributes:
      task: the `send` task that sends it. kinds: of the values.
      sources: their shardings as they leave. targets: the same on the devices of the stage that receives them, whose
        k-th device gets what the sender's k-th device has.
    """

    task: Task
    kinds: tuple[Value, ...]
    sources: tuple[NamedSharding, ...]
    targets: tuple[NamedSharding, ...]


class Channel(Protocol):
    """Messages between stages, the same ones every step, made known when the channel is made.

    All processes take part in a step's messages in the order in which they were made known, each in those that its
    devices send or receive.
    """

    def begin(self) -> None:
        """A step begins."""

    def send(self, message: Message, values: Sequence[jax.Array]) -> None:
        """Hands over arrays that may still be computed. Does not wait."""

    def receive(self, message: Message) -> list[jax.Array]:
        """Arrays on the receiving stage, perhaps still on their way."""

    def settle(self) -> None:
        """Waits until what was sent so far may be overwritten (donated)."""


class LocalChannel:
    """Between stages whose devices are all of this process: JAX copies from device to device."""

    def __init__(self) -> None:
        self._sent: dict[Task, list[jax.Array]] = {}

    def begin(self) -> None:
        self._sent.clear()

    def send(self, message: Message, values: Sequence[jax.Array]) -> None:
        self._sent[message.task] = jax.device_put(list(values), list(message.targets))

    def receive(self, message: Message) -> list[jax.Array]:
        return self._sent.pop(message.task)

    def settle(self) -> None:
        """The copies were dispatched before whatever overwrites their sources."""
