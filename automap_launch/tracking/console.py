"""What the user reads while the search and the training go on.

Training prints whole lines from time to time rather than a live display: the script's own output passes through the
same terminal, and a display that redraws itself would fight with it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from automap_launch.tracking.events import CompileEvent, ReadyEvent, StepEvent, TrialEvent
from automap_launch.tracking.throughput import Rates
from automap_launch.units import format_seconds

_SHOWN_OUTPUTS = 3


class ConsoleProgress:
    """Progress of search and training on `terminal`, at most one line every `interval` seconds while training."""

    def __init__(self, terminal: TextIO, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(file=terminal, highlight=False, soft_wrap=True)
        self._interval = interval
        self._clock = clock
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._search_ends = ""
        self._last_line = -math.inf
        self._unprinted: tuple[StepEvent, Rates] | None = None
        self._recent: deque[tuple[float, Rates]] = deque(maxlen=1000)
        self._finite = True

    def note(self, text: str) -> None:
        self._console.print(f"[bold cyan]automap-launch[/] {escape(text)}")

    def warn(self, text: str) -> None:
        self._console.print(f"[bold yellow]automap-launch: warning:[/] {escape(text)}")

    def search_started(self, total: float | None) -> None:
        """The search ends when its progress reaches `total` (seconds or evaluations) at the latest."""
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("[bold cyan]searching[/]"),
            BarColumn(bar_width=32),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def search(self, episode: int, best_step_seconds: float | None, done: float, *, improved: bool) -> None:
        """Progress of the search; `done` in the unit of its total."""
        best = "no plan fits yet" if best_step_seconds is None else f"best {format_seconds(best_step_seconds)} a step"
        self._search_ends = f"{best}, episode {episode}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, description=self._search_ends)
        elif improved and self._due():
            self.note(f"searching: {self._search_ends}")

    def search_ended(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None
        self._last_line = -math.inf

    def ready(self, event: ReadyEvent) -> None:
        again = f" (restart {event.attempt})" if event.attempt else ""
        self.note(
            f"training on {_count(event.devices, 'device')} in {_count(event.processes, 'process', 'processes')}{again}"
        )

    def tried(self, event: TrialEvent) -> None:
        measured = ", ".join(
            f"{name} {'cannot be run' if seconds is None else format_seconds(seconds) + ' a step'}"
            for name, seconds in event.seconds.items()
        )
        self.note(f"tried on the devices: {measured}; training with {event.chosen}")

    def compiled(self, event: CompileEvent) -> None:
        self.note(f"compiled the step in {format_seconds(event.seconds)} {event.signature}".rstrip())

    def step(self, event: StepEvent, rates: Rates) -> None:
        """Prints the first step, one every interval, and at once the step at which an output stops being finite."""
        if not event.warmup:
            self._recent.append((event.seconds, rates))
        bad = sorted(path for path, value in event.outputs.items() if not math.isfinite(value))
        if bad and self._finite:
            self._finite = False
            self._print_step(event, rates)
            self.warn(f"{bad[0]} is {event.outputs[bad[0]]} from step {event.step} on")
        elif self._due():
            self._print_step(event, rates)
        else:
            self._unprinted = (event, rates)

    def ended(self) -> None:
        """Prints the last step, if its line has not been due."""
        if self._unprinted is not None:
            self._print_step(*self._unprinted)

    def _due(self) -> bool:
        now = self._clock()
        if now - self._last_line < self._interval:
            return False
        self._last_line = now
        return True

    def _print_step(self, event: StepEvent, rates: Rates) -> None:
        """One line; its times are medians since the line before, for a single step says little."""
        recent = list(self._recent) or [(event.seconds, rates)]
        parts = [f"[bold cyan]automap-launch[/] step {event.step}", *map(_output, _shown(event.outputs).items())]
        parts.append(f"{format_seconds(statistics.median(s for s, _ in recent))}/step")
        if event.warmup:
            parts[-1] += " (compilation included)"
        parts += _rate("examples/s", [r.examples_per_second for _, r in recent])
        parts += _rate("tokens/s", [r.tokens_per_second for _, r in recent])
        used = [r.mfu for _, r in recent if r.mfu is not None]
        if used:
            parts.append(f"MFU {statistics.median(used):.1%}")
        self._console.print("  ".join(parts))
        self._recent.clear()
        self._unprinted = None


def _shown(outputs: Mapping[str, float]) -> dict[str, float]:
    """The few outputs that fit a line: losses first, then in the script's own order."""
    ranked = sorted(outputs, key=lambda path: "loss" not in path.lower())
    return {path: outputs[path] for path in ranked[:_SHOWN_OUTPUTS]}


def _output(item: tuple[str, float]) -> str:
    path, value = item
    name = f"output {path}" if path.isdecimal() else path
    text = f"{escape(name)} {value:.5g}"
    return text if math.isfinite(value) else f"[bold red]{text}[/]"


def _rate(unit: str, values: list[float | None]) -> list[str]:
    known = [v for v in values if v is not None]
    if not known:
        return []
    median = statistics.median(known)
    return [f"{median:,.0f} {unit}" if median >= 100 else f"{median:.3g} {unit}"]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
