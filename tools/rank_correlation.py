"""Writes `docs/calibration.md`: predicted step times of many plans against measured ones, on a calibrated machine.

    automap-launch mode=calibrate cluster.devices=8       # first, once
    python tools/rank_correlation.py --measure 90         # again and again: each run adds rounds for so many seconds
    python tools/rank_correlation.py                      # writes the document from what was measured

The plans are chosen by rule before anything is measured: every factorisation data x model of eight devices, with each
of five sets of groups on the model axis, and with the first of them also at every storage level. They are measured
in paired blocks, in a new random order every round, the first plan twice: what it differs from itself is the noise.
Only its ratio to the first plan in the same round counts. What was measured and compiled is kept in
`outputs/rank_correlation/`, so that measuring can be cut into slices for times when the machine is quiet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DEVICES = 8
if __name__ == "__main__":
    os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=str(DEVICES))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from scipy.stats import rankdata  # noqa: E402

from automap_launch.cluster.detect import detect_local  # noqa: E402
from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.plan.baselines import inner_groups, stream_group  # noqa: E402
from automap_launch.plan.cost import CostModel  # noqa: E402
from automap_launch.plan.decision import STORAGES, Decision  # noqa: E402
from automap_launch.plan.derive import derive_layout  # noqa: E402
from automap_launch.plan.explain import describe_mesh  # noqa: E402
from automap_launch.plan.sharding import why_invalid  # noqa: E402
from automap_launch.program.analyse import analyse  # noqa: E402
from automap_launch.program.program import Program  # noqa: E402
from automap_launch.runtime.executable import Executable  # noqa: E402
from automap_launch.runtime.mesh import make_mesh  # noqa: E402
from automap_launch.train_step import Entry, TrainStep  # noqa: E402
from automap_launch.units import format_seconds  # noqa: E402
from tools.paired_blocks import measure, median_interval  # noqa: E402

DOCUMENT = ROOT / "docs" / "calibration.md"
FOLDER = ROOT / "outputs" / "rank_correlation"
# Recipes' scripts at a size with steps of 20 ms and more.
MODELS = {
    "quickstart": ("quickstart/train.py", ("--steps", "10")),
    "gpt2": ("gpt2/train.py", ("--size", "tiny", "--steps", "10", "--batch-size", "16")),
}
STEPS_OF_A_BLOCK = 3
FEWEST_STEPS = 200
SAME = "the first plan again"
SPREAD, CORRELATION = 3.0, 0.9

HEADER = """\
# Predicted against measured step times

Written by `python tools/rank_correlation.py` (its head says how). Eight virtual CPU devices in one process, on a
machine that `mode=calibrate` has measured: products by shape, memory traffic by size, collectives by kind, size and
number of devices, each with all eight devices busy, because they share this machine's cores.

Plans are chosen by rule before measuring: every factorisation data x model of 8 devices, and on the model axis
*inner* dims (no two in one weight), the *stream* between layers, *every* parameter's dims, or the *largest* or
*smallest* group but the stream; pure data parallelism and *inner* dims also with every storage level. Each is measured
in blocks of 3 steps in random order. Two plans whose measured times differ by less than a plan may differ from itself
(the farther end of the 95 % interval of the median ratio between two runs of one plan) are tied.
"""


@dataclass(frozen=True)
class Rank:
    """How well predictions order what was measured. `pairs`: that are no ties; `agree`: of these, ordered alike."""

    spearman: float
    kendall: float
    pairs: int
    agree: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="MODEL", action="append", choices=MODELS)
    parser.add_argument("--measure", metavar="SECONDS", type=float, help="add rounds for so long; 0: compile only")
    options = parser.parse_args()
    names = options.only or list(MODELS)
    if options.measure is not None:
        for name in names:
            add_rounds(name, options.measure / len(names))
        return 0
    DOCUMENT.write_text("\n".join([HEADER, *(section(name) for name in names)]))
    print(DOCUMENT.read_text())
    return 0


def plans(program: Program) -> dict[str, Decision]:
    """The plans, by name; what the program cannot have, and repetitions, are left out."""
    found: dict[str, Decision] = {}
    stream = stream_group(program)
    for model in (n for n in range(1, DEVICES + 1) if DEVICES % n == 0):
        for number, (name, groups) in enumerate(group_sets(program, model, stream).items()):
            for storage in STORAGES if number == 0 and model < DEVICES else ("none",):
                decision = Decision(DEVICES // model, model, groups, storage)  # type: ignore[arg-type]
                if why_invalid(program, decision) is None and decision not in found.values():
                    found[f"{describe_mesh(decision)}{name}"] = decision
    return found


def group_sets(program: Program, model: int, stream: int | None) -> dict[str, frozenset[int]]:
    """Sets of groups for the model axis, by what is added to the plan's name."""
    if model == 1:
        return {"": frozenset()}
    usable = [g.id for g in program.groups if g.kind == "parameter" and g.divisor % model == 0]
    others = [g for g in usable if g != stream]
    sets = {
        ", inner": inner_groups(program, model),
        ", stream": frozenset({stream} if stream in usable else ()),
        ", every": frozenset(usable),
        ", largest": frozenset(others[:1]),
        ", smallest": frozenset(others[-1:]),
    }
    return {name: groups for name, groups in sets.items() if groups}


def program_of(name: str) -> Program:
    script, arguments = MODELS[name]
    folder = FOLDER / "steps" / name
    if not folder.exists():
        entry = Entry(str(ROOT / "recipes" / script), args=arguments)
        capture(entry, FrontendConfig(), ["cpu"], folder, folder.with_suffix(".log"))
    return analyse(TrainStep.load(folder))


# Measuring


def add_rounds(name: str, seconds: float) -> None:
    """Runs rounds of blocks of all plans for so long and appends them to what was measured before."""
    started = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(FOLDER / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    program = program_of(name)
    chosen = plans(program)
    first = next(iter(chosen))
    runners = {plan: Runner(program, decision) for plan, decision in (*chosen.items(), (SAME, chosen[first]))}
    path = FOLDER / f"{name}.json"
    rounds: list[dict[str, float]] = json.loads(path.read_text()) if path.exists() else []
    print(f"{name}: {len(chosen)} plans ready after {format_seconds(time.monotonic() - started)}", flush=True)
    while time.monotonic() - started < seconds:
        block = measure(runners, rounds=1, steps=STEPS_OF_A_BLOCK, seed=len(rounds))
        rounds.append({plan: float(times[0]) for plan, times in block.items()})
        path.write_text(json.dumps(rounds))
    print(f"{name}: {len(rounds)} rounds, {len(rounds) * STEPS_OF_A_BLOCK} steps of each plan", flush=True)


class Runner:
    """One plan's step on real devices, its state fed back; called with a number of steps, returns their seconds."""

    def __init__(self, program: Program, decision: Decision) -> None:
        step, layout = program.step, derive_layout(program, decision)
        self._executable = Executable(step.modules["cpu"], step.arguments, step.results, layout, make_mesh(layout.mesh))
        self._leaves = first_arguments(program)
        self._replaced = [(i, r.replaces) for i, r in enumerate(step.results) if r.replaces is not None]
        self(2)

    def __call__(self, steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            results = self._executable(self._leaves)
            for index, argument in self._replaced:
                self._leaves[argument] = results[index]
        jax.block_until_ready(results)
        return time.perf_counter() - started


def first_arguments(program: Program) -> list[Any]:
    """Small random parameters, an optimizer at its start, and a batch of random tokens."""
    rng = np.random.default_rng(0)
    found: list[Any] = []
    for index, argument in enumerate(program.step.arguments):
        if argument.dtype.startswith("key"):
            found.append(jax.random.key(0))
        elif index in program.parameters:
            found.append(rng.normal(0, 0.02, argument.shape).astype(argument.dtype))
        elif argument.role == "batch":
            found.append(rng.integers(0, 32, argument.shape).astype(argument.dtype))
        else:
            found.append(np.zeros(argument.shape, argument.dtype))
    return found


# Judging


def section(name: str) -> str:
    """A model's part of the document."""
    program = program_of(name)
    chosen = plans(program)
    model = CostModel(program, detect_local("cpu", DEVICES))
    predicted = np.array([estimate.step_seconds for estimate in model.estimate_many(list(chosen.values()))])
    rounds = json.loads((FOLDER / f"{name}.json").read_text())
    measured, noise, reference = ratios(rounds, list(chosen))
    rank = rank_of(predicted, measured, noise)
    steps = len(rounds) * STEPS_OF_A_BLOCK
    lines = [
        f"\n## {name}\n",
        f"`{' '.join(MODELS[name][1])}`; {len(chosen)} plans, {steps} steps each"
        + (f" (of {FEWEST_STEPS} that are wanted)" if steps < FEWEST_STEPS else "")
        + f"; {model.cluster.source}, {os.cpu_count()} cores.\n",
        f"- Measured spread: {measured.max() / measured.min():.2f} (wanted: {SPREAD:g} or more).",
        f"- Noise of a plan against itself: {noise:.1%}.",
        f"- Spearman {rank.spearman:.3f}, Kendall {rank.kendall:.3f} (wanted: {CORRELATION:g}): {rank.agree} of "
        f"{rank.pairs} pairs that are no ties are in the right order.\n",
        "| plan | measured | predicted | predicted / measured |",
        "|---|---|---|---|",
    ]
    for index in np.argsort(measured):
        real, guess = measured[index] * reference, predicted[index]
        plan = list(chosen)[index]
        lines.append(f"| {plan} | {format_seconds(real)} | {format_seconds(guess)} | {guess / real:.2f} |")
    return "\n".join(lines) + "\n"


def ratios(rounds: Sequence[dict[str, float]], names: Sequence[str]) -> tuple[np.ndarray, float, float]:
    """Each plan's median ratio to the first one in the same round; the noise of such a ratio; the first's seconds."""
    first = np.array([r[names[0]] for r in rounds])
    measured = np.array([np.median([r[name] for r in rounds] / first) for name in names])
    again = median_interval(np.array([r[SAME] for r in rounds]) / first)
    noise = max(abs(np.log(again.low)), abs(np.log(again.high)))
    return measured, float(noise), float(np.median(first))


def rank_of(predicted: np.ndarray, measured: np.ndarray, noise: float) -> Rank:
    """Rank correlations in which measured times closer than `noise` (a share) are ties.

    Kendall's is taken over the pairs that are no ties (Goodman and Kruskal's gamma): concordant less discordant ones.
    Spearman's gives plans that are tied with the fastest of their group one rank, the mean of theirs; the predictions
    keep ranks of their own.
    """
    agree = pairs = 0
    for a, b in itertools.combinations(range(len(measured)), 2):
        if abs(np.log(measured[a] / measured[b])) <= noise:
            continue
        pairs += 1
        agree += bool((predicted[a] - predicted[b]) * (measured[a] - measured[b]) > 0)
    real = rankdata(tied_groups(measured, noise))
    return Rank(float(np.corrcoef(real, rankdata(predicted))[0, 1]), (2 * agree - pairs) / pairs, pairs, agree)


def tied_groups(measured: np.ndarray, noise: float) -> np.ndarray:
    """A number for each plan, rising with its time; plans within `noise` of the fastest of their group share one."""
    groups = np.zeros(len(measured), dtype=int)
    start, number = -np.inf, -1
    for index in np.argsort(measured):
        if np.log(measured[index]) - start > noise:
            start, number = np.log(measured[index]), number + 1
        groups[index] = number
    return groups


if __name__ == "__main__":
    sys.exit(main())
