"""A small step under plans of every kind on eight devices: exact, or refused as foretold.

    JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 python -m tests.runtime.under_plans [NAME ...]

runs all steps of tests/program/adversarial, or those named.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import jax
import numpy as np
import pytest

from automap_launch.errors import PlanError
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.program.analyse import analyse
from automap_launch.program.divide import why_undivided
from automap_launch.runtime.build import Execution, build_executable
from tests.program.adversarial import CASES, Case, step_of

# By name: devices of the data axis, stages and micro-batches.
PLANS = {
    "data parallel": (8, Execution()),
    "accumulation": (2, Execution(1, 4)),
    "pipeline": (2, Execution(2, 2, "1f1b")),
}


def outcomes(case: Case) -> dict[str, str]:
    """By plan: `exact`, or why it is refused. Raises AssertionError where a plan's results are not the step's."""
    step = step_of(case)
    program = analyse(step)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((case.state, case.batch))]
    expected = jax.tree.leaves(jax.jit(case.step)(*case.state, *case.batch))
    found = {}
    for name, (data, execution) in PLANS.items():
        refusal = why_undivided(program, execution.stages) if execution.is_split else None
        batch = None if program.batch is None else program.groups[program.batch]
        layout = derive_layout(program, Decision(1 if batch is None or batch.divisor % data else data, 1))
        devices = jax.devices()[: layout.mesh["data"] * execution.stages]
        if refusal is not None:
            with pytest.raises(PlanError, match=re.escape(refusal.reason)):
                build_executable(step, layout, execution, devices=devices)
            found[name] = refusal.reason
            continue
        made = build_executable(step, layout, execution, devices=devices)(list(leaves))
        for result, got, wanted in zip(step.results, made, expected, strict=True):
            close(got, wanted, f"{case.name}, {name}, {result.path}")
        found[name] = "exact"
    return found


def close(got: Any, wanted: Any, what: str) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-5, err_msg=what)


if __name__ == "__main__":
    wrong = 0
    for one in CASES:
        if one.name in sys.argv[1:] or len(sys.argv) == 1:
            try:
                print(one.name, outcomes(one), flush=True)
            except AssertionError as error:
                wrong += 1
                print(one.name, "WRONG:", error, flush=True)
    sys.exit(wrong)
