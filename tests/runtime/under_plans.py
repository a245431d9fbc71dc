"""A small step under plans of every kind on eight devices: equal to the plain step, or refused as foretold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest

from automap_launch.errors import PlanError
from automap_launch.frontends import jax_internals
from automap_launch.frontends.source_lines import source_of
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.execution import Execution
from automap_launch.plan.sharding import shardable_groups
from automap_launch.program.analyse import analyse
from automap_launch.program.divide import why_undivided
from automap_launch.program.program import Program
from automap_launch.runtime.build import build_executable
from automap_launch.train_step import TrainStep
from tests.equality import F32_TOLERANCE
from tests.program.adversarial import Case, step_of
from tests.program.adversarial.case import B

# By name: sizes of the axes `data` and `model` within a stage, and stages, micro-batches, schedule.
PLANS = {
    "data parallel": (8, 1, Execution()),
    "accumulation": (2, 1, Execution(1, 4)),
    "pipeline": (2, 1, Execution(2, 2, "1f1b")),
    "hybrid": (2, 2, Execution(2, 2, "zero_bubble")),
}


@dataclass(frozen=True)
class Outcome:
    """Of a step under a plan: the largest L2 difference of any of its results from the plain step's, as a share of
    that result's norm, or why the plan is refused. `devices`: fewer where the data axis cannot cut the batch."""

    devices: int
    difference: float = 0.0
    refused: str | None = None

    @property
    def is_equal(self) -> bool:
        return self.refused is None and self.difference <= F32_TOLERANCE


def outcomes(case: Case) -> dict[str, Outcome]:
    """By plan. A plan is refused when it is built exactly where, and in the words in which, the analysis says so."""
    step = with_sources(step_of(case))
    program = analyse(step)
    expected = plain_results(case)
    found = {}
    for name, (data, model, execution) in PLANS.items():
        refusal = why_undivided(program, execution.stages) if execution.is_split else None
        layout = derive_layout(program, _decision(program, data, model))
        devices = jax.devices()[: math.prod(layout.mesh.values()) * execution.stages]
        if refusal is not None:
            with pytest.raises(PlanError, match=re.escape(refusal.reason)):
                build_executable(step, layout, execution, devices=devices)
            found[name] = Outcome(len(devices), refused=refusal.reason)
            continue
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((case.state, case.batch))]
        made = build_executable(step, layout, execution, devices=devices)(leaves)
        found[name] = Outcome(len(devices), largest_difference(made, expected))
    return found


def half_lost(case: Case) -> float:
    """By how much the plain step's results differ when one half of the examples is there twice and the other is not,
    whichever half it differs more by: an error of that size in a plan is one that `outcomes` must see."""
    expected = plain_results(case)
    halves = (range(B // 2), range(B // 2, B))
    return max(
        largest_difference(plain_results(replace(case, batch=_twice(case.batch, half))), expected) for half in halves
    )


def plain_results(case: Case) -> list[Any]:
    return jax.tree.leaves(jax.jit(case.step)(*case.state, *case.batch))


def largest_difference(results: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest L2 difference of any result, as a share of its norm; infinite where one is not finite alone."""
    return max(_difference(np.asarray(a), np.asarray(b)) for a, b in zip(results, expected, strict=True))


def with_sources(step: TrainStep) -> TrainStep:
    """The step with the source line of every operation, as a capture finds them."""
    module = jax_internals.read_artifact(step.modules["cpu"])  # its operations do not keep it alive
    return replace(step, sources=tuple(source_of(str(o.location)) for o in jax_internals.operations(module)))


def _decision(program: Program, data: int, model: int) -> Decision:
    """With every group on the axis `model` that it divides, and no axis `data` where it does not divide the batch."""
    cuts_batch = program.batch is not None and program.groups[program.batch].divisor % data == 0
    sharded = {g for g in shardable_groups(program) if program.groups[g].divisor % model == 0}
    return Decision(data if cuts_batch else 1, model, frozenset(sharded) if model > 1 else frozenset())


def _twice(batch: tuple[Any, ...], half: Sequence[int]) -> tuple[Any, ...]:
    return tuple(np.take(x, [*half, *half], axis=np.shape(x).index(B)) for x in batch)


def _difference(got: np.ndarray, wanted: np.ndarray) -> float:
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    if np.array_equal(got, wanted):
        return 0.0
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    norm = float(np.linalg.norm(wanted))
    difference = float(np.linalg.norm(got - wanted))
    return difference / (norm or 1.0) if np.isfinite(difference) else float("inf")
