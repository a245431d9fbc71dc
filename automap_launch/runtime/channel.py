"""How values get from one stage to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import jax
from jax.sharding import NamedSharding

from automap_launch.program.program import Value
from automap_launch.runtime.schedules import Task


class Channel(Protocol):
    """Messages between stages. A pair of stages has one queue in each direction; both sides name messages by the task
    that sends them, and take them in the order of the task lists (`schedules.with_messages`)."""

    def send(self, message: Task, values: Sequence[jax.Array], shardings: Sequence[NamedSharding]) -> None:
        """Hands over arrays that may still be computed. Does not wait.

        Args:
          message: a `send` task. shardings: of the receiving stage.
        """

    def receive(self, message: Task, kinds: Sequence[Value], shardings: Sequence[NamedSharding]) -> list[jax.Array]:
        """Arrays on the receiving stage, perhaps still on their way.

        Args:
          message: the `send` task. kinds, shardings: of the values, as the receiver expects them.
        """


class LocalChannel:
    """Between stages whose devices are all of this process: JAX copies from device to device."""

    def __init__(self) -> None:
        self._sent: dict[Task, list[jax.Array]] = {}

    def send(self, message: Task, values: Sequence[jax.Array], shardings: Sequence[NamedSharding]) -> None:
        self._sent[message] = jax.device_put(list(values), list(shardings))

    def receive(self, message: Task, kinds: Sequence[Value], shardings: Sequence[NamedSharding]) -> list[jax.Array]:
        del kinds, shardings
        return self._sent.pop(message)
