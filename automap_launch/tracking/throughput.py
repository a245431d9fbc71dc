"""Throughput and model flops utilisation, from the events of rank 0."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from automap_launch.tracking.events import ReadyEvent, StepEvent

_WINDOW = 100_000  # steps that medians are taken over; bounds the memory of a run of weeks


@dataclass(frozen=True)
class Rates:
    """Throughput of one step. None: unknown, or the step was a warm-up."""

    examples_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None


class Throughput:
    """Running throughput of a launch.

    A warm-up step, whose time includes a compilation, is counted in `steps` but in no rate. Everything is about the
    latest attempt: a restart begins anew.
    """

    def __init__(self) -> None:
        self._flops: float | None = None
        self._peak_flops: float | None = None
        self.processes: int | None = None
        self.devices: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.steps = 0
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._rates: deque[Rates] = deque(maxlen=_WINDOW)

    def expect(self, flops: float | None, peak_flops: float | None) -> None:
        """Tells the floating-point operations of one whole step, and those a device can do in a second."""
        self._flops = flops
        self._peak_flops = peak_flops

    def ready(self, event: ReadyEvent) -> None:
        self.processes = event.processes
        self.devices = event.devices
        self._begin()

    def step(self, event: StepEvent) -> Rates:
        self.steps += 1
        if event.warmup or event.seconds <= 0:
            return Rates()
        rates = Rates(
            examples_per_second=None if event.examples is None else event.examples / event.seconds,
            tokens_per_second=None if event.tokens is None else event.tokens / event.seconds,
            mfu=mfu(self._flops, event.seconds, self.devices, self._peak_flops),
        )
        self._seconds.append(event.seconds)
        self._rates.append(rates)
        return rates

    @property
    def step_seconds_median(self) -> float | None:
        return _median(self._seconds)

    def summary(self) -> dict[str, Any]:
        """The section `train` of `summary.json`. Rates are medians over steps; null when nothing was measured."""
        return {
            "steps": self.steps,
            "step_seconds_median": self.step_seconds_median,
            "examples_per_second": _median(r.examples_per_second for r in self._rates),
            "tokens_per_second": _median(r.tokens_per_second for r in self._rates),
            "mfu": _median(r.mfu for r in self._rates),
            "processes": self.processes,
            "devices": self.devices,
        }


def mfu(flops: float | None, seconds: float, devices: int | None, peak_flops: float | None) -> float | None:
    """Model flops utilisation: the share of the devices' peak that a step of `flops` in `seconds` makes use of.

    As in PaLM (https://arxiv.org/abs/2204.02311, appendix B). None when the step's flops, the number of devices or
    the peak of one device (flops a second) is unknown.
    """
    if not flops or not devices or not peak_flops or seconds <= 0:
        return None
    return flops / (seconds * devices * peak_flops)


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
