"""Timing of a jitted function on many devices, in one process or several: for `measure.py` and `measure_curves.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

_FEWEST_CALLS, _MOST_CALLS = 3, 50


def seconds_of_call(function: Callable[..., Any], arrays: Sequence[Any], budget: float) -> float:
    """Seconds of one call of a compiled `function`: the median of as many as fit into `budget` seconds, at least 3.

    Args:
      arrays: its arguments, for every call the same.
    """
    jax.block_until_ready(function(*arrays))
    started = time.perf_counter()
    jax.block_until_ready(function(*arrays))
    calls = max(_FEWEST_CALLS, min(_MOST_CALLS, int(budget / (time.perf_counter() - started))))
    if not arrays[0].is_fully_addressable:
        # Every rank must make the same number of calls: rank 0's timing decides for all.
        calls = int(multihost_utils.broadcast_one_to_all(np.int32(calls)))
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        jax.block_until_ready(function(*arrays))
        times.append(time.perf_counter() - started)
    return statistics.median(times)
