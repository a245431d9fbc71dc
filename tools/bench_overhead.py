"""What the launcher's wrapper costs a step on one device: `python tools/bench_overhead.py`.

The unmodified quickstart runs up to the first call of its train step, with the hooks that a worker installs. From
there the very same call is repeated in blocks, in random order: by the script's own jitted function (`plain`), by the
same again (`plain again`, for the noise), and through the hooks, the captured module, and the meter that reports each
step to a pipe (`wrapped`). Measured twice: with the quickstart's step of some 50 ms, on which the limit on the ratio
is judged, and with a tiny model of as many arrays, whose step is short enough for single microseconds to be seen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "recipes" / "quickstart" / "train.py"
TINY = ("--width", "16", "--hidden", "16", "--heads", "2", "--length", "8", "--batch-size", "2")

RATIO_LIMIT = 1.03
SECONDS_LIMIT = 300e-6
SHORTEST_STEP = 20e-3

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"

import jax  # noqa: E402
from paired_blocks import Interval, measure, median_interval, verdict  # noqa: E402

from automap_launch.frontends import jit_hook  # noqa: E402
from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.frontends.deferred import DeferredTrace, materialize  # noqa: E402
from automap_launch.frontends.lowering import LoweredStep  # noqa: E402
from automap_launch.frontends.script import run_script  # noqa: E402
from automap_launch.frontends.substitute import Substitute  # noqa: E402
from automap_launch.launcher.worker import StepObserver  # noqa: E402
from automap_launch.plan.layout import Layout  # noqa: E402
from automap_launch.runtime.executable import Executable  # noqa: E402
from automap_launch.runtime.mesh import make_mesh  # noqa: E402
from automap_launch.runtime.signatures import fit, same_state  # noqa: E402
from automap_launch.tracking.feed import Feed  # noqa: E402
from automap_launch.tracking.meter import Meter  # noqa: E402
from automap_launch.train_step import Entry, TrainStep  # noqa: E402


@dataclass(frozen=True)
class Case:
    """A size of the quickstart: its arguments, and how often it is run."""

    name: str
    arguments: tuple[str, ...]
    rounds: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """What was measured for a case. Ratios to `plain`; seconds a step above it."""

    case: Case
    step_seconds: float
    ratio: Interval
    noise_ratio: Interval
    seconds: Interval
    noise_seconds: Interval


class StepReached(BaseException):
    """The script called its train step."""

    def __init__(self, function: jit_hook.HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.call = (function, args, kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="blocks of each program; 10 steps each")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the intervals there as well")
    args = parser.parse_args()
    if args.rounds < 20:
        parser.error(f"--rounds is at least 20, for 200 steps of each program, got {args.rounds}")
    cases = [
        Case("quickstart", (), args.rounds, 10),
        Case("tiny model", TINY, 4 * args.rounds, 40),
    ]
    outcomes = [run_case(case) for case in cases]
    print(table(outcomes))
    if args.json:
        args.json.write_text(json.dumps([record(outcome) for outcome in outcomes], indent=1))


def run_case(case: Case) -> Outcome:
    """Captures the quickstart at this size and measures its step."""
    entry = Entry(script=str(SCRIPT), args=("--steps", "10", *case.arguments))
    with tempfile.TemporaryDirectory() as folder:
        step = capture(entry, FrontendConfig(), ["cpu"], Path(folder) / "step", Path(folder) / "capture.log")
    with drained_pipe() as descriptor:
        meter = Meter(Feed(descriptor))
        programs = programs_of(step, entry, meter)
        for run in programs.values():
            run(3)  # compiles
        seconds = measure(programs, rounds=case.rounds, steps=case.steps)
        meter.close()
    plain, again, wrapped = (seconds[name] for name in ("plain", "plain again", "wrapped"))
    return Outcome(
        case,
        median_interval(plain).middle,
        ratio=median_interval(wrapped / plain),
        noise_ratio=median_interval(again / plain),
        seconds=median_interval(wrapped - plain),
        noise_seconds=median_interval(again - plain),
    )


def programs_of(step: TrainStep, entry: Entry, meter: Meter) -> dict[str, Callable[[int], float]]:
    """The step as three programs, each with a state of its own."""
    function, args, kwargs = first_call(step, entry)
    jit_hook.install(worker_substitute(step, meter))
    return {
        "plain": repeated(function.jitted, args, kwargs),
        "plain again": repeated(function.jitted, args, kwargs),
        "wrapped": repeated(function, args, kwargs),
    }


def worker_substitute(step: TrainStep, meter: Meter) -> Substitute:
    """The handler with which a worker (`launcher/worker.py`) answers the script's jitted functions, on one device."""
    whole = tuple(() for _ in step.arguments)
    layout = Layout(mesh={"data": 1}, compute=whole, storage=whole, results=tuple(() for _ in step.results))
    mesh = make_mesh(layout.mesh)

    def build(function: Any, lowered: LoweredStep) -> Executable:
        fitted = fit(step, layout, lowered.arguments, lowered.results)
        return Executable(function, fitted.arguments, fitted.results, fitted.layout, mesh, materialize=materialize)

    return Substitute(
        step,
        "cpu",
        accepts=lambda arguments: same_state(step, arguments),
        build=build,
        observer=StepObserver(DeferredTrace(2**24), meter),
    )


def first_call(step: TrainStep, entry: Entry) -> tuple[jit_hook.HookedFunction, tuple[Any, ...], dict[str, Any]]:
    """Runs the script up to the first call of its step; the call."""

    def handler(function: jit_hook.HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function.identity == step.identity:
            raise StepReached(function, args, kwargs)
        return function.jitted(*args, **kwargs)

    uninstall = jit_hook.install(handler)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            run_script(entry)
    except StepReached as reached:
        return reached.call
    finally:
        uninstall()
    raise RuntimeError(f"{entry.script} ended without a call of {step.identity.name}")


def repeated(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[int], float]:
    """Steps that feed their state back: the quickstart's `params, opt_state, loss = step(params, opt_state, ...)`."""
    params, opt_state, *batch = args

    def run(steps: int) -> float:
        nonlocal params, opt_state
        start = time.perf_counter()
        for _ in range(steps):
            params, opt_state, loss = function(params, opt_state, *batch, **kwargs)
        jax.block_until_ready((params, opt_state, loss))
        return time.perf_counter() - start

    return run


@contextlib.contextmanager
def drained_pipe() -> Iterator[int]:
    """A pipe that another process empties, as the launcher does; yields the end to write to, which is taken over."""
    reader, writer = os.pipe()
    drain = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
    os.close(reader)
    try:
        yield writer
    finally:
        drain.terminate()
        drain.wait()


def table(outcomes: list[Outcome], ratio_limit: float = RATIO_LIMIT) -> str:
    """One row for each quantity, with its noise and whether its limit holds."""
    rows = [("", "step", "quantity", "measured (95 %)", "noise A/A (95 %)", "limit", "verdict")]
    for outcome in outcomes:
        start = (outcome.case.name, f"{outcome.step_seconds * 1e3:.3g} ms")
        # A ratio to a step shorter than this says nothing about training.
        if outcome.step_seconds >= SHORTEST_STEP:
            intervals = [interval_text(i, 1, 4) for i in (outcome.ratio, outcome.noise_ratio)]
            judged = verdict(outcome.ratio, outcome.noise_ratio, ratio_limit, 1.0)
            rows.append((*start, "ratio", *intervals, f"{ratio_limit:g}", judged))
        intervals = [interval_text(i, 1e6, 0) for i in (outcome.seconds, outcome.noise_seconds)]
        judged = verdict(outcome.seconds, outcome.noise_seconds, SECONDS_LIMIT, 0.0)
        rows.append((*start, "µs a step", *intervals, f"{SECONDS_LIMIT * 1e6:g}", judged))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def interval_text(interval: Interval, scale: float, digits: int) -> str:
    middle, low, high = (f"{value * scale:.{digits}f}" for value in (interval.middle, interval.low, interval.high))
    return f"{middle} [{low}, {high}]"


def record(outcome: Outcome) -> dict[str, Any]:
    intervals = {name: vars(getattr(outcome, name)) for name in ("ratio", "noise_ratio", "seconds", "noise_seconds")}
    return {"case": outcome.case.name, "step_seconds": outcome.step_seconds, **intervals}


if __name__ == "__main__":
    main()
