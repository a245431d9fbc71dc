"""Writes `docs/overhead.md`: what the launcher's wrapper costs a step of JAX on one device.

    python tools/bench_overhead.py                                  # 250 steps of each program
    python tools/bench_overhead.py --case quickstart --rounds 25    # as many more; kept in outputs/overhead/

Measured twice: with the quickstart's step of some 50 ms, on which the limit on the ratio is judged, and with a tiny
model of as many arrays, whose step is short enough for single microseconds to be seen. `overhead.py` says how.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import overhead

if __name__ == "__main__":
    os.environ.update(overhead.ONE_DEVICE)

import jax

from automap_launch.frontends import jit_hook
from automap_launch.frontends.deferred import DeferredTrace, materialize
from automap_launch.frontends.script import run_script
from automap_launch.frontends.substitute import Substitute
from automap_launch.launcher.worker import StepObserver
from automap_launch.runtime.signatures import same_state
from automap_launch.tracking.meter import Meter
from automap_launch.train_step import Entry, TrainStep

HEADER = """\
# What the wrapper costs a step

The unmodified quickstart's step runs plainly (`plain`), and through the hooks, the captured module and the meter
(`wrapped`). The microseconds of the long step are below its noise; those of the tiny model, with as many arrays, are
resolved.
"""


class StepReached(BaseException):
    """The script called its train step."""

    def __init__(self, function: jit_hook.HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.call = (function, args, kwargs)


def programs(step: TrainStep, entry: Entry, meter: Meter) -> dict[str, overhead.Program]:
    """The step as three programs, each with a state of its own."""
    function, args, kwargs = first_call(step, entry)
    jit_hook.install(
        Substitute(
            step,
            "cpu",
            accepts=lambda arguments: same_state(step, arguments),
            build=overhead.one_device(step, materialize),
            observer=StepObserver(DeferredTrace(2**24), meter),
        )
    )
    return {
        "plain": repeated(function.jitted, args, kwargs),
        "plain again": repeated(function.jitted, args, kwargs),
        "wrapped": repeated(function, args, kwargs),
    }


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


def repeated(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> overhead.Program:
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


TINY = ("--width", "16", "--hidden", "16", "--heads", "2", "--length", "8", "--batch-size", "2")
BENCH = overhead.Bench(
    tool="tools/bench_overhead.py",
    script=overhead.ROOT / "recipes" / "quickstart" / "train.py",
    cases=(overhead.Case("quickstart", (), 10), overhead.Case("tiny model", TINY, 160)),
    programs=programs,
    ratio_limit=1.03,
    results=overhead.ROOT / "outputs" / "overhead" / "jax.json",
    document=overhead.ROOT / "docs" / "overhead.md",
    header=HEADER,
)

if __name__ == "__main__":
    overhead.main(BENCH, __doc__)
