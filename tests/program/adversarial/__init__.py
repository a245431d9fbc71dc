"""Small steps in which examples meet, or seem to, each with whether it may run in micro-batches.

Every step is `step(params, *batch) -> (params, metrics ...)` on 8 examples.
"""

from __future__ import annotations

from functools import cache

from automap_launch.train_step import TrainStep
from tests.program.adversarial import apart, gradients, inputs, loops, losses, metrics, rules, scripts
from tests.program.adversarial.case import CASES, Case, data, nll, params, sgd
from tests.program.conftest import make_step

__all__ = ["CASES", "Case", "data", "nll", "params", "sgd", "step_of"]

FILES = (apart, gradients, inputs, loops, losses, metrics, rules, scripts)  # importing a file registers its steps

_BY_NAME = {case.name: case for case in CASES}


def step_of(case: Case) -> TrainStep:
    """A case's step, lowered once."""
    return _step_of(case.name)


@cache
def _step_of(name: str) -> TrainStep:
    case = _BY_NAME[name]
    return make_step(case.step, case.state, *case.batch)
