"""What the measurements of the wrapper's cost share: `bench_overhead.py` (JAX), `bench_overhead_tf.py` (TensorFlow).

A script runs up to the first call of its train step, with the hooks that a worker installs. From there the very same
call is repeated in blocks, in random order: plainly (`plain`), by the same again (`plain again`, for the noise), and
through the hooks, the captured module, and the meter that reports each step to a pipe (`wrapped`). Each case is
measured in a process of its own. The blocks of all runs are kept in a file, and the document is written from them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.frontends.lowering import LoweredStep  # noqa: E402
from automap_launch.plan.layout import Layout  # noqa: E402
from automap_launch.runtime.executable import Executable  # noqa: E402
from automap_launch.runtime.mesh import make_mesh  # noqa: E402
from automap_launch.runtime.placement import Materialize  # noqa: E402
from automap_launch.runtime.signatures import fit  # noqa: E402
from automap_launch.tracking.feed import Feed  # noqa: E402
from automap_launch.tracking.meter import Meter  # noqa: E402
from automap_launch.train_step import Entry, TrainStep  # noqa: E402
from tools.paired_blocks import Interval, measure, median_interval, verdict  # noqa: E402

ONE_DEVICE = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
SECONDS_LIMIT = 300e-6
SHORTEST_STEP = 20e-3
LEAST_STEPS = 200
PROGRAMS = ("plain", "plain again", "wrapped")

Program = Callable[[int], float]


@dataclass(frozen=True)
class Case:
    """A size of a script: its arguments, and the steps of a block."""

    name: str
    arguments: tuple[str, ...]
    steps: int


@dataclass(frozen=True)
class Bench:
    """What a tool measures.

    Attributes:
      programs: the programs by name (`PROGRAMS`), from the captured step, its entry and the meter.
      results: where the blocks are kept. document, header: what is written, and its beginning.
    """

    tool: str
    script: Path
    cases: tuple[Case, ...]
    programs: Callable[[TrainStep, Entry, Meter], Mapping[str, Program]]
    ratio_limit: float
    results: Path
    document: Path
    header: str


@dataclass(frozen=True)
class Outcome:
    """What was measured for a case. Ratios to `plain`; seconds a step above it."""

    case: Case
    blocks: int
    step_seconds: float
    ratio: Interval
    noise_ratio: Interval
    seconds: Interval
    noise_seconds: Interval


def main(bench: Bench, description: str | None) -> None:
    """The command line of a tool."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="blocks of each program, added to those kept")
    parser.add_argument("--case", choices=[case.name for case in bench.cases], help="only this one, in this process")
    parser.add_argument("--fresh", action="store_true", help="forget the blocks kept from earlier runs")
    given = parser.parse_args()
    if given.fresh:
        bench.results.unlink(missing_ok=True)
    if given.case is None:
        for case in bench.cases:
            command = [sys.executable, *sys.orig_argv[1:2], "--case", case.name, "--rounds", str(given.rounds)]
            subprocess.run(command, check=True)
        return
    case = next(case for case in bench.cases if case.name == given.case)
    kept = json.loads(bench.results.read_text()) if bench.results.exists() else {}
    before = kept.get(case.name, {name: [] for name in PROGRAMS})
    seconds = run_case(bench, case, given.rounds, seed=len(before["plain"]))
    kept[case.name] = {name: [*before[name], *map(float, seconds[name])] for name in PROGRAMS}
    bench.results.parent.mkdir(parents=True, exist_ok=True)
    bench.results.write_text(json.dumps(kept))
    outcomes = [outcome_of(case, kept[case.name]) for case in bench.cases if case.name in kept]
    print(table(outcomes, bench.ratio_limit))
    if all(outcome.blocks * outcome.case.steps >= LEAST_STEPS for outcome in outcomes) and len(outcomes) == len(kept):
        bench.document.write_text(document(bench, outcomes))


def run_case(bench: Bench, case: Case, rounds: int, seed: int) -> Mapping[str, np.ndarray]:
    """Captures the script at this size and measures its step; seconds a step, one entry a round."""
    entry = Entry(script=str(bench.script), args=("--steps", "10", *case.arguments))
    with tempfile.TemporaryDirectory() as folder:
        step = capture(entry, FrontendConfig(), ["cpu"], Path(folder) / "step", Path(folder) / "capture.log")
    with drained_pipe() as descriptor:
        meter = Meter(Feed(descriptor))
        programs = bench.programs(step, entry, meter)
        for run in programs.values():
            run(3)  # compiles
        seconds = measure(programs, rounds=rounds, steps=case.steps, seed=seed)
        meter.close()
    return seconds


def outcome_of(case: Case, seconds: Mapping[str, Sequence[float]]) -> Outcome:
    plain, again, wrapped = (np.asarray(seconds[name]) for name in PROGRAMS)
    return Outcome(
        case,
        len(plain),
        median_interval(plain).middle,
        ratio=median_interval(wrapped / plain),
        noise_ratio=median_interval(again / plain),
        seconds=median_interval(wrapped - plain),
        noise_seconds=median_interval(again - plain),
    )


def one_device(step: TrainStep, materialize: Materialize | None = None) -> Callable[[Any, LoweredStep], Executable]:
    """What a worker (`launcher/worker.py`) makes of a signature of `step`, on one device."""
    whole = tuple(() for _ in step.arguments)
    layout = Layout(mesh={"data": 1}, compute=whole, storage=whole, results=tuple(() for _ in step.results))
    mesh = make_mesh(layout.mesh)

    def build(function: Any, lowered: LoweredStep) -> Executable:
        fitted = fit(step, layout, lowered.arguments, lowered.results)
        return Executable(function, fitted.arguments, fitted.results, fitted.layout, mesh, materialize=materialize)

    return build


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


def table(outcomes: Sequence[Outcome], ratio_limit: float) -> str:
    """One row for each quantity, with its noise and whether its limit holds."""
    rows: list[tuple[str, ...]] = [
        ("", "step", "steps", "quantity", "measured (95 %)", "noise A/A (95 %)", "limit", "verdict")
    ]
    for outcome in outcomes:
        case = outcome.case
        start = (case.name, f"{outcome.step_seconds * 1e3:.3g} ms", str(outcome.blocks * case.steps))
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


def document(bench: Bench, outcomes: Sequence[Outcome]) -> str:
    """The document: the header, the machine, the table and how to read it."""
    return (
        f"{bench.header}\nWritten by `python {bench.tool}`, on {os.cpu_count()} cores ({platform.machine()}), one CPU "
        f"device.\n\n```\n{table(outcomes, bench.ratio_limit)}\n```\n\n"
        "Blocks of `plain`, `plain` again (A/A, the noise) and `wrapped` run in one process, in random order. A limit\n"
        "holds when the lower end of the 95 % bootstrap interval is at or below it and the noise is narrower than the\n"
        "margin; else it is not resolvable here. A ratio to a step below 20 ms says nothing about training.\n"
    )
