"""Writes `docs/tensorflow_equality.md`: TensorFlow scripts x plans, each run against TensorFlow alone with XLA.

    python tools/tensorflow_equality.py                    # runs that were not made yet, then the table
    python tools/tensorflow_equality.py --only tf_bert     # of scripts whose name has this text
    python tools/tensorflow_equality.py --float float64    # of this precision
    python tools/tensorflow_equality.py --table            # the table of the runs that are there

Runs are kept in `outputs/tensorflow_equality`, one folder a script and precision, so that a call that was broken off
goes on; delete a folder to run it anew.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.equality import CONTROL_FACTOR, F32_TOLERANCE, F64_TOLERANCE, EqualityReport, compare, load_dump  # noqa: E402
from tests.frontends.tensorflow.harness import SCRIPTS as FOLDER  # noqa: E402
from tests.frontends.tensorflow.harness import Job, outcome, run_jobs  # noqa: E402

DOCUMENT = ROOT / "docs" / "tensorflow_equality.md"
RUNS = ROOT / "outputs" / "tensorflow_equality"
VISION, BERT = ROOT / "recipes" / "keras_vision" / "train.py", ROOT / "recipes" / "tf_bert" / "train.py"
SECONDS = 3600

# data, model, stages, micro-batches
PLANS = {
    "one device": (1, 1, 1, 1),
    "DP8": (8, 1, 1, 1),
    "DP4xTP2": (4, 2, 1, 1),
    "PP2xDP2xTP2": (2, 2, 2, 2),
    "accumulate4": (4, 2, 1, 4),
}
TOLERANCES = {"float32": F32_TOLERANCE, "float64": F64_TOLERANCE}


@dataclass(frozen=True)
class Script:
    """A script of the table.

    Attributes:
      said: what it is and what of it is compared.
      args: its options, with {float} for the precision.
      permute: its option that permutes the rows of each batch.
      draws: how many runs of TensorFlow alone begin with other last bits.
    """

    said: str
    path: Path
    args: tuple[str, ...] = ()
    permute: str = "--permute-rows"
    draws: int = 3


def _vision(model: str, steps: int, rate: str, said: str = "") -> Script:
    # In float64 XLA's convolutions for CPUs are plain loops.
    small = ("--image-size", "32", "--classes", "10", "--batch-size", "8", "--policy", "{float}")
    short = ("--steps", str(steps), "--log-every", "1", "--warmup", "0", "--learning-rate", rate)
    return Script(
        f"recipe, 8 images of 32 x 32{said}, rate {rate}: {steps} steps", VISION, ("--model", model, *small, *short)
    )


SCRIPTS = {
    "custom_loop": Script(
        "custom loop, Adam, moving average, last batches smaller: 20 steps, and one more from a checkpoint after 16",
        FOLDER / "custom_loop.py",
        ("--epochs", "5", "--float", "{float}"),
        "--permute",
        draws=8,
    ),
    "fit_layer_norm": Script(
        "Keras `fit`, AdamW, layer norm: 28 steps of three calls", FOLDER / "fit.py", ("--norm", "Layer"), "--permute"
    ),
    "fit_batch_norm": Script("the same with batch norm", FOLDER / "fit.py", permute="--permute"),
    "tf_bert_tiny": Script(
        "recipe, custom loop, AdamW: 20 steps", BERT, ("--learning-rate", "1e-3", "--steps", "20", "--log-every", "1")
    ),
    "keras_vgg19": _vision("vgg19", 2, "0.01"),
    "keras_resnet50": _vision("resnet50", 2, "1e-5", ", batch norm"),
}

ALONE = {
    "rows permuted": ("control",),
    "without XLA": ("no_xla",),
    "last bits": tuple(f"last_bit_{i}" for i in range(1, 1 + max(script.draws for script in SCRIPTS.values()))),
}

HEADER = f"""\
# TensorFlow scripts under plans equal TensorFlow alone

Written by `python tools/tensorflow_equality.py`, on eight virtual CPU devices. The scripts are run as they are, in
float32 and in float64: by TensorFlow, with XLA where the script asks for it (`fit_*` leave it to Keras, which compiles
nothing on a CPU), and under each plan.

Compared are the losses of every step (of every epoch, for `fit`) and all variables at the end, tensor by tensor, in
L2: a difference of at most {F32_TOLERANCE:g} (float32) or {F64_TOLERANCE:g} (float64) of the tensor's norm; or, if its
gradient is noise (at most 1e-6 of the global gradient), of three times what the tensor differs by when the rows of
each batch of the plain run are permuted (the control). How large a gradient is, the optimizer's own slots of the plain
run tell: the root of the second moment, or the momentum.

How far rounding alone moves a script in float32, TensorFlow shows by itself. The script runs on it with the rows of
each batch permuted, without XLA, and several times with the random initial weights changed in their last bits (by one
unit, up or down by chance). A run under a plan that differs in tensors, but in each of them by at most three times what
one of these runs differs by, does what TensorFlow does: the cell says "as TensorFlow alone", in how many tensors, and
the largest of these ratios. Of a network that makes rounding as large as that, float64 tells whether a step is right.

| script | what it is |
|---|---|
"""

FLIPS = """\
What differs in float32 and not in float64 is rounding that a step makes larger. Networks have many ways to do so: an
input of a ReLU that is as good as zero gets another sign, or another of two equal numbers is the maximum, and a whole
gradient goes another way; Adam's first step divides a gradient that is as good as zero by itself; fifty batch norms of
a few images, one after the other, multiply what is rounded. Which of them it is in which tensor was not traced.
TensorFlow and JAX bring two releases of XLA, which round convolutions differently.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", default="", help="run scripts whose name has this text")
    parser.add_argument("--float", choices=TOLERANCES, help="run in this precision")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    wanted = [name for name in SCRIPTS if options.only in name and not options.table]
    for name in wanted:
        for precision in TOLERANCES if options.float is None else (options.float,):
            run_jobs(missing_jobs(name, precision), RUNS / precision / name, SECONDS)
        print("\n".join(rows(name)), flush=True)
    DOCUMENT.write_text(document())
    return 0


def missing_jobs(name: str, precision: str) -> list[Job]:
    """What was not run yet: the plain run, TensorFlow's others, the capture, and a run under each plan."""
    script, folder = SCRIPTS[name], RUNS / precision / name
    path, args, step = str(script.path), [a.format(float=precision) for a in script.args], str(folder / "step")
    alone = []
    if precision == "float32":
        alone = [Job("no_xla", "plain", path, [*args, "--dump", "no_xla.npz"], xla=False)]
        for i in range(1, 1 + script.draws):
            alone.append(Job(f"last_bit_{i}", "plain", path, [*args, "--dump", f"last_bit_{i}.npz"], last_bit=i))
    jobs = [
        Job("plain", "plain", path, [*args, "--dump", "plain.npz"]),
        Job("control", "plain", path, [*args, "--dump", "control.npz", script.permute]),
        *alone,
        Job("capture", "capture", path, args, step),
        *(Job(p, "run", path, [*args, "--dump", f"{p}.npz"], step, plan) for p, plan in PLANS.items()),
    ]
    return [replace(job, floatx=precision) for job in jobs if not (folder / f"{job.name}.code").exists()]


def document() -> str:
    lines = [HEADER.rstrip("\n")]
    lines += [f"| {name} | {script.said} |" for name, script in SCRIPTS.items()]
    lines += [
        "\nA cell names the tensor with the largest difference of those that hold by the tolerance, as a share of its",
        "norm, and says how many hold by the control alone (they are named below).\n",
        "| script | plan | float32 | float64 |",
        "|---|---|---|---|",
    ]
    for name in SCRIPTS:
        lines += rows(name)
    lines += ["\nTensorFlow alone in float32, against itself:\n", "| script | run | tensors beyond the tolerance |"]
    lines += ["|---|---|---|", *(f"| {name} | {run} | {_alone_cell(name, run)} |" for name in SCRIPTS for run in ALONE)]
    return "\n".join(lines) + "\n" + "".join(f"\n{text}\n" for text in remarks())


def rows(name: str) -> list[str]:
    """The cells of a script, a line each."""
    return [f"| {name} | {plan} | {' | '.join(_cell(name, plan, p) for p in TOLERANCES)} |" for plan in PLANS]


def remarks() -> Iterator[str]:
    """What float32 rounds away, if it does, and the tensors that pass by the control alone."""
    reports = {(n, p, f): _report(n, p, f) for n in SCRIPTS for p in PLANS for f in TOLERANCES}
    pairs = [(reports[n, p, "float32"], reports[n, p, "float64"]) for n in SCRIPTS for p in PLANS]
    if any(f32 and not f32.equal and f64 and f64.equal for f32, f64 in pairs):
        yield FLIPS.rstrip("\n")
    for (name, plan, precision), report in reports.items():
        if report is not None and report.equal and report.by_control:
            yield f"{name}, {plan}, {precision}, equal up to their own noise: {', '.join(report.by_control)}."


def _cell(name: str, plan: str, precision: str) -> str:
    folder = RUNS / precision / name
    if not (folder / f"{plan}.code").exists():
        return "not run"
    report = _report(name, plan, precision)
    if report is None:
        done = outcome(folder, plan)
        refused = done.report.get("refused")
        why = refused.replace(f"{ROOT}/", "") if refused else (done.text.strip().splitlines() or ["no text"])[-1]
        return f"{'refused' if refused else '**failed**'}: {' '.join(why.split())}"
    noise = set(report.by_control) - {path for path, _ in report.not_noise}
    worst = max((t for t in report.tensors if t.path not in noise), key=lambda tensor: tensor.relative)
    off = {t.path: t.difference for t in report.different} | {
        t.path: t.difference for t in report.tensors if t.path in dict(report.not_noise)
    }
    verdict = "equal"
    if off:
        alone = _alone(folder, TOLERANCES[precision])
        ratio, path = max((difference / alone[path] if alone[path] else inf, path) for path, difference in off.items())
        if ratio <= CONTROL_FACTOR:
            return f"as TensorFlow alone: {len(off)} of {len(report.tensors)}, at most {ratio:.1f} x ({path})"
        verdict = f"**{len(off)} of {len(report.tensors)} differ**"
    by_control = f"; {len(noise)} of {len(report.tensors)} by the control" if noise else ""
    return f"{verdict}: {worst.relative:.1e} ({worst.path}){by_control}"


def _alone_cell(name: str, run: str) -> str:
    folder = RUNS / "float32" / name
    reports = [_against_itself(folder, job, F32_TOLERANCE) for job in ALONE[run] if (folder / f"{job}.npz").exists()]
    if not reports:
        return "not run"
    report = max(reports, key=lambda r: (len(r.different), r.worst.relative))
    of = f", the worst of {len(reports)} runs" if len(reports) > 1 else ""
    return f"{len(report.different)} of {len(report.tensors)}: {report.worst.relative:.1e} ({report.worst.path}){of}"


def _alone(folder: Path, tolerance: float) -> dict[str, float]:
    """By tensor: the largest difference of a run of TensorFlow alone from the plain one, in L2."""
    largest: dict[str, float] = {}
    for job in (job for jobs in ALONE.values() for job in jobs if (folder / f"{job}.npz").exists()):
        for tensor in _against_itself(folder, job, tolerance).tensors:
            largest[tensor.path] = max(largest.get(tensor.path, 0.0), tensor.difference)
    return largest


@functools.cache
def _against_itself(folder: Path, job: str, tolerance: float) -> EqualityReport:
    """Another run of TensorFlow alone against the plain one; nothing passes by a control."""
    reference, run = (by_parameter(load_dump(folder / f"{name}.npz")) for name in ("plain", job))
    return compare(reference, run, reference, tolerance=tolerance)


def _report(name: str, plan: str, precision: str) -> EqualityReport | None:
    """None: the run was not made, or did not end well."""
    return _compared(RUNS / precision / name, plan, TOLERANCES[precision])


@functools.cache
def _compared(folder: Path, plan: str, tolerance: float) -> EqualityReport | None:
    if not (folder / f"{plan}.code").exists() or outcome(folder, plan).code:
        return None
    reference, run, control = (by_parameter(load_dump(folder / f"{name}.npz")) for name in ("plain", plan, "control"))
    return compare(reference, run, control, gradients(reference), tolerance=tolerance)


def by_parameter(run: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Slots renamed to end with their parameter's path: `adam/dense_kernel_momentum` to `momentum/dense/kernel`."""
    slots = {f"{path.replace('/', '_')}_{kind}": f"{kind}/{path}" for path in run for kind in ("momentum", "velocity")}
    return {slots.get(path.rpartition("/")[2], path): array for path, array in run.items()}


def gradients(run: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How large each parameter's gradients were, as the optimizer remembers them; by the parameter's path."""
    seconds = {p.removeprefix("velocity/"): np.sqrt(a) for p, a in run.items() if p.startswith("velocity/")}
    return seconds or {p.removeprefix("momentum/"): a for p, a in run.items() if p.startswith("momentum/")}


if __name__ == "__main__":
    sys.exit(main())
