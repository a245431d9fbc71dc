"""What the launcher's wrapper costs a TensorFlow step on one device: `python tools/bench_overhead_tf.py`.

The unmodified recipe `tf_bert` runs up to the first call of its train step, twice, so that there are two models. The
first one's step is repeated by TensorFlow with XLA (`plain`, and the same again for the noise), the second one's with a
worker's hooks, the captured module on JAX's runtime, and the meter (`wrapped`). See `bench_overhead.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"

import tensorflow as tf
from bench_overhead import ROOT, Case, Outcome, drained_pipe, record, table
from paired_blocks import measure, median_interval

from automap_launch.frontends.capture import capture
from automap_launch.frontends.config import FrontendConfig
from automap_launch.frontends.deferred import DeferredTrace
from automap_launch.frontends.lowering import LoweredStep
from automap_launch.frontends.script import run_script
from automap_launch.frontends.tensorflow import calls, tf_internals
from automap_launch.frontends.tensorflow.run import take_the_step
from automap_launch.launcher.worker import StepObserver
from automap_launch.plan.layout import Layout
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh
from automap_launch.runtime.signatures import fit
from automap_launch.tracking.feed import Feed
from automap_launch.tracking.meter import Meter
from automap_launch.train_step import Entry, TrainStep

SCRIPT = ROOT / "recipes" / "tf_bert" / "train.py"
TINY = ("--hidden", "16", "--vocabulary", "32", "--length", "8", "--batch-size", "2")
RATIO_LIMIT = 1.05


class StepReached(BaseException):
    """The script called its train step. Its traceback keeps alive what the script holds: the model."""

    def __init__(self, call: calls.Call) -> None:
        super().__init__()
        self.call = call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="blocks of each program; 10 steps each")
    parser.add_argument("--case", choices=["tf_bert", "tiny model"], help="only this one")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the intervals there as well")
    args = parser.parse_args()
    if args.rounds < 20:
        parser.error(f"--rounds is at least 20, for 200 steps of each program, got {args.rounds}")
    # One process a case: TensorFlow's hooks cannot be taken back.
    case = {
        "tf_bert": Case("tf_bert", (), args.rounds, 10),
        "tiny model": Case("tiny model", TINY, args.rounds, 40),
    }[args.case or "tf_bert"]
    outcome = run_case(case)
    print(table([outcome], RATIO_LIMIT))
    if args.json:
        args.json.write_text(json.dumps(record(outcome), indent=1))


def run_case(case: Case) -> Outcome:
    """Captures the recipe at this size and measures its step."""
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
    """The step as three programs, the last one with a model of its own."""
    unhooked = (tf_internals.Function.__call__, tf_internals.ConcreteFunction._call_flat)
    first, second = first_call(step, entry), first_call(step, entry)
    set_hooks(unhooked)
    take_the_step(step, builder(step), StepObserver(DeferredTrace(2**24), meter))
    hooked = (tf_internals.Function.__call__, tf_internals.ConcreteFunction._call_flat)
    return {
        "plain": repeated(first, unhooked),
        "plain again": repeated(first, unhooked),
        "wrapped": repeated(second, hooked),
    }


def builder(step: TrainStep) -> Callable[[Any, LoweredStep], Executable]:
    """What a worker (`launcher/worker.py`) makes of a signature, on one device."""
    whole = tuple(() for _ in step.arguments)
    layout = Layout(mesh={"data": 1}, compute=whole, storage=whole, results=tuple(() for _ in step.results))
    mesh = make_mesh(layout.mesh)

    def build(function: Any, lowered: LoweredStep) -> Executable:
        fitted = fit(step, layout, lowered.arguments, lowered.results)
        return Executable(function, fitted.arguments, fitted.results, fitted.layout, mesh)

    return build


def first_call(step: TrainStep, entry: Entry) -> StepReached:
    """Runs the script up to the first call of its step."""

    def handler(call: calls.Call) -> Any:
        if call.identity == step.identity:
            raise StepReached(call)
        return call.run_as_is()

    before = tf_internals.Function.__call__
    calls.install(handler)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            run_script(entry)
    except StepReached as reached:
        return reached
    finally:
        tf_internals.Function.__call__ = before
    raise RuntimeError(f"{entry.script} ended without a call of {step.identity.name}")


def set_hooks(hooks: tuple[Any, Any]) -> None:
    tf_internals.Function.__call__, tf_internals.ConcreteFunction._call_flat = hooks


def repeated(reached: StepReached, hooks: tuple[Any, Any]) -> Callable[[int], float]:
    """Steps with the same batch; the last one's loss is waited for."""
    call = reached.call

    def run(steps: int) -> float:
        set_hooks(hooks)
        start = time.perf_counter()
        for _ in range(steps):
            result = call.function(*call.args, **call.kwargs)
        for value in tf.nest.flatten(result):
            value.numpy()
        assert reached.__traceback__ is not None
        return time.perf_counter() - start

    return run


if __name__ == "__main__":
    main()
