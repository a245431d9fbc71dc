"""Writes `docs/tensorflow_equality.md`: TensorFlow scripts x plans, each run against TensorFlow alone with XLA.

    python tools/tensorflow_equality.py                    # runs that were not made yet, then the table
    python tools/tensorflow_equality.py --only tf_bert     # of scripts whose name has this text
    python tools/tensorflow_equality.py --table            # the table of the runs that are there

Runs are kept in `outputs/tensorflow_equality`, one folder a script, so that a call that was broken off goes on;
delete a script's folder to run it anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.equality import F32_TOLERANCE, EqualityReport, compare, load_dump  # noqa: E402
from tests.frontends.tensorflow.harness import SCRIPTS as FOLDER  # noqa: E402
from tests.frontends.tensorflow.harness import Job, outcome, run_jobs  # noqa: E402

DOCUMENT = ROOT / "docs" / "tensorflow_equality.md"
RUNS = ROOT / "outputs" / "tensorflow_equality"
VISION, BERT = ROOT / "recipes" / "keras_vision" / "train.py", ROOT / "recipes" / "tf_bert" / "train.py"
SECONDS = 3600

# data, model, stages, micro-batches
PLANS = {"DP8": (8, 1, 1, 1), "DP4xTP2": (4, 2, 1, 1), "PP2xDP2xTP2": (2, 2, 2, 2), "accumulate4": (8, 1, 1, 4)}
WHOLE = ("DP8", "DP4xTP2")


@dataclass(frozen=True)
class Script:
    """A script of the table.

    Attributes:
      said: what it is and what of it is compared.
      permute: its option that permutes the rows of each batch.
      plans: under which it runs.
    """

    said: str
    path: Path
    args: tuple[str, ...] = ()
    permute: str = "--permute-rows"
    plans: tuple[str, ...] = tuple(PLANS)


def _fit(said: str, *args: str) -> Script:
    return Script(said, FOLDER / "fit.py", args, "--permute")


_SMALL = ("--image-size", "32", "--classes", "10", "--batch-size", "32", "--log-every", "1", "--warmup", "3")
SCRIPTS = {
    "custom_loop": Script(
        "custom loop, Adam, moving average, last batches smaller: 24 steps, and one more from a checkpoint after 20",
        FOLDER / "custom_loop.py",
        ("--epochs", "6", "--float", "float32"),
        "--permute",
    ),
    "fit_layer_norm": _fit("Keras `fit`, AdamW, layer norm: 28 steps of three calls", "--norm", "Layer"),
    "fit_batch_norm": _fit("the same with batch norm"),
    "tf_bert_tiny": Script(
        "recipe, custom loop, AdamW: 20 steps", BERT, ("--learning-rate", "1e-3", "--steps", "20", "--log-every", "1")
    ),
    "keras_vgg19": Script(
        "recipe, images of 32 x 32: 3 steps", VISION, ("--model", "vgg19", *_SMALL, "--steps", "3"), plans=WHOLE
    ),
    "keras_resnet50": Script(
        "recipe, images of 32 x 32, batch norm: 3 steps",
        VISION,
        ("--model", "resnet50", *_SMALL, "--steps", "3"),
        plans=WHOLE,
    ),
}

HEADER = f"""\
# TensorFlow scripts under plans equal TensorFlow alone

Written by `python tools/tensorflow_equality.py`, in float32 on eight virtual CPU devices. The scripts
are run as they are: by TensorFlow with XLA, and under each plan. (Tests compare the custom loop in float64 as well.)

Compared are the losses of every step (of every epoch, for `fit`) and all variables at the end, tensor by tensor, in
L2: a difference of at most {F32_TOLERANCE:g} of the tensor's norm; or, if its gradient is noise (at most 1e-6 of
the global gradient), of three times what the tensor differs by when the rows of each batch of the plain run are
permuted (the control). How large a gradient is, the optimizer's own slots of the plain run tell: the root of the
second moment, or the momentum.

| script | what it is |
|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", default="", help="run scripts whose name has this text")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    for name, script in SCRIPTS.items():
        if options.only in name and not options.table:
            run_jobs(missing_jobs(name, script), RUNS / name, SECONDS)
            print("\n".join(row(name, script)), flush=True)
    DOCUMENT.write_text(document())
    return 0


def missing_jobs(name: str, script: Script) -> list[Job]:
    """What was not run yet: the plain run, its control, the capture, and a run under each plan."""
    folder, path, args = RUNS / name, str(script.path), list(script.args)
    step = str(folder / "step")
    jobs = [
        Job("plain", "plain", path, [*args, "--dump", "plain.npz"]),
        Job("control", "plain", path, [*args, "--dump", "control.npz", script.permute]),
        Job("capture", "capture", path, args, step),
        *(Job(p, "run", path, [*args, "--dump", f"{p}.npz"], step, PLANS[p]) for p in script.plans),
    ]
    return [job for job in jobs if not (folder / f"{job.name}.code").exists()]


def document() -> str:
    lines = [HEADER.rstrip("\n")]
    lines += [f"| {name} | {script.said} |" for name, script in SCRIPTS.items()]
    lines += [
        "\n| script | plan | verdict | by the control alone | worst of the others, share of its norm |",
        "|---|---|---|---|---|",
    ]
    for name, script in SCRIPTS.items():
        lines += row(name, script)
    return "\n".join(lines) + "\n" + "".join(f"\n{line}\n" for line in by_control())


def row(name: str, script: Script) -> list[str]:
    """The cells of a script, a line each."""
    return [f"| {name} | {plan} | {_cell(name, plan)} |" for plan in script.plans]


def by_control() -> Iterator[str]:
    """Names the tensors that pass by the control alone."""
    for name, script in SCRIPTS.items():
        for plan in script.plans:
            report = _report(name, plan)
            if report is not None and report.by_control:
                yield f"{name}, {plan}, equal up to their own noise: {', '.join(report.by_control)}."


def _cell(name: str, plan: str) -> str:
    folder = RUNS / name
    if not (folder / f"{plan}.code").exists():
        return "not run | - | -"
    report = _report(name, plan)
    if report is None:
        done = outcome(folder, plan)
        refused = done.report.get("refused")
        why = refused.replace(f"{ROOT}/", "") if refused else (done.text.strip().splitlines() or ["no text"])[-1]
        return f"{'refused' if refused else '**failed**'}: {' '.join(why.split())} | - | -"
    held = [tensor for tensor in report.tensors if tensor.path not in report.by_control]
    worst = max(held, key=lambda tensor: tensor.relative)
    off = len(report.different) + len(report.not_noise)
    verdict = "equal" if report.equal else f"**{off} of {len(report.tensors)} differ**"
    return f"{verdict} | {len(report.by_control)} of {len(report.tensors)} | {worst.relative:.1e} ({worst.path})"


def _report(name: str, plan: str) -> EqualityReport | None:
    """None: the run was not made, or did not end well."""
    folder = RUNS / name
    if not (folder / f"{plan}.code").exists() or outcome(folder, plan).code:
        return None
    reference, run, control = (by_parameter(load_dump(folder / f"{name}.npz")) for name in ("plain", plan, "control"))
    return compare(reference, run, control, gradients(reference))


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
