import io
import math

import pytest

from automap_launch.tracking.console import ConsoleProgress
from automap_launch.tracking.events import CompileEvent, ReadyEvent, StepEvent
from automap_launch.tracking.throughput import Rates


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(terminal: io.StringIO, clock: Clock) -> ConsoleProgress:
    return ConsoleProgress(terminal, interval=5.0, clock=clock)


def step(number: int, seconds: float = 0.1, *, warmup: bool = False, **outputs: float) -> StepEvent:
    return StepEvent(number, 0.0, seconds, 32, None, outputs or {"loss": 1.0 / number}, warmup)


def test_the_first_step_then_one_an_interval_and_the_last(
    console: ConsoleProgress, terminal: io.StringIO, clock: Clock
) -> None:
    for number in range(1, 24):
        console.step(step(number), Rates())
        clock.now += 1.0
    console.ended()
    assert [line.split()[2] for line in terminal.getvalue().splitlines()] == ["1", "6", "11", "16", "21", "23"]
    console.ended()
    assert terminal.getvalue().count("step 23 ") == 1


def test_a_line_names_loss_time_and_rates(console: ConsoleProgress, terminal: io.StringIO) -> None:
    rates = Rates(examples_per_second=1234.5, tokens_per_second=158016.0, mfu=0.314)
    outputs = {"accuracy": 0.5, "1": 7.0, "aux/loss": 2.25, "norm": 3.0}
    console.step(StepEvent(4, 0.0, 0.0259, 32, 4096, outputs), rates)
    assert terminal.getvalue() == (
        "automap-launch step 4  aux/loss 2.25  accuracy 0.5  output 1 7  "
        "25.9 ms/step  1,234 examples/s  158,016 tokens/s  MFU 31.4%\n"
    )


def test_times_are_medians_since_the_line_before(console: ConsoleProgress, terminal: io.StringIO, clock: Clock) -> None:
    console.step(step(1, 9.0, warmup=True), Rates())
    for number, seconds in ((2, 0.1), (3, 7.0), (4, 0.1)):
        console.step(step(number, seconds), Rates())
    clock.now += 5.0
    console.step(step(5, 0.1), Rates())
    first, second = terminal.getvalue().splitlines()
    assert "9 s/step (compilation included)" in first
    assert "100 ms/step" in second


def test_a_loss_that_turns_nan_is_told_at_once_and_once(console: ConsoleProgress, terminal: io.StringIO) -> None:
    console.step(step(1, loss=1.0), Rates())
    for number in (2, 3, 4):
        console.step(step(number, loss=math.nan), Rates())
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("automap-launch step 2  loss nan")
    assert lines[2] == "automap-launch: warning: loss is nan from step 2 on"


def test_names_of_the_user_are_no_markup(console: ConsoleProgress, terminal: io.StringIO) -> None:
    console.step(step(1, **{"[red]loss[/red]": 1.0}), Rates())
    console.warn("[bold]x[/bold]")
    assert "[red]loss[/red] 1" in terminal.getvalue()
    assert "[bold]x[/bold]" in terminal.getvalue()


def test_phases_are_told(console: ConsoleProgress, terminal: io.StringIO) -> None:
    console.ready(ReadyEvent(0.0, processes=1, devices=8))
    console.compiled(CompileEvent(0.0, seconds=1.25, signature="f32[8,128]"))
    console.ready(ReadyEvent(0.0, processes=2, devices=8, attempt=1))
    assert terminal.getvalue().splitlines() == [
        "automap-launch training on 8 devices in 1 process",
        "automap-launch compiled the step in 1.25 s f32[8,128]",
        "automap-launch training on 8 devices in 2 processes (restart 1)",
    ]


def test_without_a_terminal_improvements_are_lines(
    console: ConsoleProgress, terminal: io.StringIO, clock: Clock
) -> None:
    console.search_started(60.0)
    console.search(1, None, 0.1, improved=False)
    console.search(2, 0.5, 0.2, improved=True)
    console.search(3, 0.4, 0.3, improved=True)  # too soon for another line
    clock.now += 5.0
    console.search(900, 0.025, 5.0, improved=True)
    console.search_ended()
    assert terminal.getvalue().splitlines() == [
        "automap-launch searching: best 500 ms a step, episode 2",
        "automap-launch searching: best 25 ms a step, episode 900",
    ]


def test_on_a_terminal_the_search_has_a_bar_that_leaves_no_trace(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    console = ConsoleProgress(terminal, interval=5.0, clock=clock)
    console.search_started(60.0)
    console.search(900, 0.025, 5.0, improved=True)
    console.search_ended()
    text = terminal.getvalue()
    assert "searching" in text
    assert "best 25 ms a step, episode 900" in text
    assert text.endswith("\x1b[2K")  # the bar's line is erased
