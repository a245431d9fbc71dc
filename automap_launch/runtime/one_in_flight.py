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
      devices: that the step runs on. results: of the step.
    """

    def __init__(self, devices: Sequence[Any], results: Sequence[Result]) -> None:
        self._active = len(devices) > 1 and devices[0].platform == "cpu" and bool(results)
        self._smallest = min(range(len(results)), key=lambda i: math.prod(results[i].shape), default=0)
        self._last: Any = None

    def wait(self) -> None:
        if self._last is not None and not self._last.is_deleted():
            self._last.block_until_ready()

    def started(self, results: Sequence[Any]) -> None:
        """Takes note of the results of the step just dispatched."""
        if self._active:
            self._last = results[self._smallest]
