"""Measuring a small difference between programs on a noisy machine (docs/contract.md, "Measuring").

The programs run in one process, in blocks of a few steps, in a new random order every round. Only ratios of blocks
of one round are used, so that what slows the machine down slows both. One program is run under two names: their
ratio, 1 in truth, is the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval."""

    middle: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def measure(
    programs: Mapping[str, Callable[[int], float]], *, rounds: int, steps: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Seconds a step of each program, one entry a round.

    Args:
      programs: by name, a function that runs so many steps and returns the seconds they took.
      rounds: blocks of each program.
      steps: of one block.
    """
    rng = np.random.default_rng(seed)
    names = list(programs)
    seconds = {name: np.empty(rounds) for name in names}
    for i in range(rounds):
        for name in rng.permutation(names):
            seconds[name][i] = programs[name](steps) / steps
    return seconds


def median_interval(samples: np.ndarray, *, seed: int = 0) -> Interval:
    """The median of `samples` [rounds] and its percentile bootstrap interval (Efron, 1979)."""
    rng = np.random.default_rng(seed)
    picked = rng.integers(0, len(samples), (RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(samples[picked], axis=1), [0.025, 0.975])
    return Interval(float(np.median(samples)), float(low), float(high))


def verdict(measured: Interval, noise: Interval, limit: float, baseline: float) -> str:
    """Whether `measured` is at most `limit`: `holds`, `does not hold`, or `not resolvable here`.

    `baseline` is the value of no difference (1 for a ratio, 0 for seconds); `noise` is the same quantity measured
    between a program and itself, and must be narrower than the margin from `baseline` to `limit`.
    """
    if noise.width >= limit - baseline:
        return "not resolvable here"
    return "holds" if measured.low <= limit else "does not hold"
