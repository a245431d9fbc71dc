"""On CPU devices one step is in flight at a time.

XLA's CPU devices share a pool of threads. With several steps in flight, collectives of one can take all of them and
wait for each other for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from automap_launch.train_step import Result


class OneInFlight:
    """Lets a step begin when the one before it has ended; does nothing on one device, or on other platforms.

    Args:
      devices: that the step runs on. results: of the step. stages: they end at different times.
    """

    def __init__(self, devices: Sequence[Any], results: Sequence[Result], *, stages: bool = False) -> None:
        self.active = len(devices) > 1 and devices[0].platform == "cpu" and bool(results)
        smallest = min(range(len(results)), key=lambda i: math.prod(results[i].shape), default=0)
        self._waited = range(len(results)) if stages else range(smallest, smallest + 1)
        self._last: list[Any] = []

    def wait(self) -> None:
        for array in self._last:
            if not array.is_deleted():
                array.block_until_ready()

    def started(self, results: Sequence[Any]) -> None:
        """Takes note of the results of the step just dispatched."""
        if self.active:
            self._last = [results[i] for i in self._waited]
