"""Small steps in which examples meet, or seem to, each with whether it may run in micro-batches.

Every step is `step(params, *batch) -> (params, metrics ...)` on 8 examples.
"""

from __future__ import annotations

from tests.program.adversarial import apart, gradients, inputs, loops, losses, metrics
from tests.program.adversarial.case import CASES, Case, data, nll, params, sgd

__all__ = ["CASES", "Case", "data", "nll", "params", "sgd"]

FILES = (apart, gradients, inputs, loops, losses, metrics)  # importing a file registers its steps
