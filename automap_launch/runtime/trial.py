"""A trial: a few steps on the real devices, from a state that is thrown away, to see how long a step takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax

from automap_launch.runtime.placement import is_deferred
from automap_launch.train_step import Runner

# Three tell a lucky step from the rule; the first of all compiles and is not counted.
TRIAL_STEPS = 3


def try_steps(runner: Runner, leaves: Sequence[Any], steps: int = TRIAL_STEPS) -> float:
    """Median seconds of a step, compilation apart. `leaves` are afterwards as they were: the steps donate copies.

    Raises:
      Whatever the steps raise: no memory, most of all.
    """
    donated = [i for i, argument in enumerate(runner.arguments) if argument.donated]
    replaced = {r.replaces: i for i, r in enumerate(runner.results) if r.replaces is not None}
    first = list(leaves)
    for index in donated:
        first[index] = _copy(first[index])
    own = runner.place(first)
    seconds = []
    for _ in range(1 + steps):
        fed = list(own)
        for index in donated:
            if index not in replaced:
                fed[index] = _copy(fed[index])
        jax.block_until_ready(fed)
        start = time.perf_counter()
        results = jax.block_until_ready(runner(fed))
        seconds.append(time.perf_counter() - start)
        for index, result in replaced.items():
            own[index] = results[result]
    return statistics.median(seconds[1:])


def _copy(leaf: Any) -> Any:
    if is_deferred(leaf) or not isinstance(leaf, jax.Array):
        return leaf
    return jax.numpy.copy(leaf)
