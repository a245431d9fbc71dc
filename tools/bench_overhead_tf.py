"""Writes `docs/overhead_tensorflow.md`: what the launcher's wrapper costs a step of TensorFlow on one device.

    python tools/bench_overhead_tf.py                               # 250 steps of each program
    python tools/bench_overhead_tf.py --case tf_bert --rounds 25    # as many more; kept in outputs/overhead/

The unmodified recipe `tf_bert` runs up to the first call of its train step, twice, so that there are two models. The
first one's step is repeated by TensorFlow with XLA (`plain`), the second one's under a worker's hooks on JAX's
runtime (`wrapped`). `overhead.py` says how.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import overhead

if __name__ == "__main__":
    os.environ.update(overhead.ONE_DEVICE)

import tensorflow as tf

from automap_launch.frontends.deferred import DeferredTrace
from automap_launch.frontends.script import run_script
from automap_launch.frontends.tensorflow import calls, tf_internals
from automap_launch.frontends.tensorflow.run import take_the_step
from automap_launch.launcher.worker import StepObserver
from automap_launch.tracking.meter import Meter
from automap_launch.train_step import Entry, TrainStep

HEADER = """\
# What the wrapper costs a step of TensorFlow

The step of the unmodified recipe `tf_bert` runs in TensorFlow with XLA (`plain`), and under the hooks, on JAX's
runtime, with the meter (`wrapped`). Each library brings a release of XLA of its own, so that the step itself may be
faster in one: the tiny model, with as many arrays and next to nothing to compute, shows what the hooks alone cost.
"""


class StepReached(BaseException):
    """The script called its train step. Its traceback keeps alive what the script holds: the model."""

    def __init__(self, call: calls.Call) -> None:
        super().__init__()
        self.call = call


def programs(step: TrainStep, entry: Entry, meter: Meter) -> dict[str, overhead.Program]:
    """The step as three programs, the last one with a model of its own."""
    unhooked = (tf_internals.Function.__call__, tf_internals.ConcreteFunction._call_flat)
    first, second = first_call(step, entry), first_call(step, entry)
    set_hooks(unhooked)
    take_the_step(step, overhead.one_device(step), StepObserver(DeferredTrace(2**24), meter))
    hooked = (tf_internals.Function.__call__, tf_internals.ConcreteFunction._call_flat)
    return {
        "plain": repeated(first, unhooked),
        "plain again": repeated(first, unhooked),
        "wrapped": repeated(second, hooked),
    }


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


def repeated(reached: StepReached, hooks: tuple[Any, Any]) -> overhead.Program:
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


TINY = ("--hidden", "16", "--vocabulary", "32", "--length", "8", "--batch-size", "2")
BENCH = overhead.Bench(
    tool="tools/bench_overhead_tf.py",
    script=overhead.ROOT / "recipes" / "tf_bert" / "train.py",
    cases=(overhead.Case("tf_bert", (), 10), overhead.Case("tiny model", TINY, 160)),
    programs=programs,
    ratio_limit=1.05,
    results=overhead.ROOT / "outputs" / "overhead" / "tensorflow.json",
    document=overhead.ROOT / "docs" / "overhead_tensorflow.md",
    header=HEADER,
)

if __name__ == "__main__":
    overhead.main(BENCH, __doc__)
