"""What cannot be cut is known when plans are made: the analysis says what building would, and a search goes on."""

from __future__ import annotations

import io
import re

import jax
import numpy as np
import pytest
from rich.console import Console

from automap_launch.errors import PlanError
from automap_launch.plan.build import build_plan
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.execution import Execution
from automap_launch.plan.explain import candidates
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Origin
from automap_launch.program.analyse import analyse
from automap_launch.program.batch_analysis import State
from automap_launch.program.divide import why_undivided
from automap_launch.runtime.build import build_executable
from automap_launch.search.config import PinConfig, SearchConfig
from automap_launch.search.search import search
from automap_launch.split.step import read
from tests.plan.programs import cluster
from tests.program.adversarial import CASES, Case, step_of

BY_NAME = {case.name: case for case in CASES}
# Nothing is wrong with them while their loops stand once.
AS_LINES = ("branch_that_may_never_end", "as_many_rounds_as_the_state_says")


def leaves(case: Case) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((case.state, case.batch))]


@pytest.mark.parametrize("name", [*AS_LINES, "batch_norm", "hardest_examples"])
def test_what_splitting_refuses_is_known_to_the_analysis(name):
    step = step_of(BY_NAME[name])
    refusal = why_undivided(analyse(step))
    batch = {k: State("batch", 0) for k, a in enumerate(step.arguments) if a.role == "batch"}
    with pytest.raises(PlanError) as refused:
        read(step.modules["cpu"], step.arguments, step.results, batch, sources=step.sources)
    assert refusal.reason == refused.value.message
    assert (refused.value.file, refused.value.line) == ("step.py", refusal.source.line)
    assert re.search(r"step\.py:\d+", refusal.reason)


@pytest.mark.parametrize("name", AS_LINES)
def test_a_search_goes_on_with_what_is_left_and_says_what_is_not(name):
    case = BY_NAME[name]
    step = step_of(case)
    program = analyse(step)
    model = CostModel(program, cluster())
    with pytest.raises(PlanError, match=r"search\.pin\.micro_batches=2 is impossible: .* at step\.py:\d+"):
        Pins.resolve(PinConfig(micro_batches=2), program, model.cluster)
    config = SearchConfig(method="exact")
    found = search(model, config, Pins.resolve(config.pin, program, model.cluster))
    assert (found.decision.stages, found.decision.micro_batches) == (1, 1)
    plan = build_plan(found.decision, model, Origin("oracle", 0))
    console = Console(file=io.StringIO(), width=120)
    console.print(candidates(plan, found.decision, model))
    said = " ".join(console.file.getvalue().split())
    assert f"left out, micro-batches and stages: {why_undivided(program).reason}" in said
    executable = build_executable(step, derive_layout(program, found.decision), Execution.of(plan))
    made = executable(leaves(case))
    expected = jax.tree.leaves(jax.jit(case.step)(*case.state, *case.batch))
    for got, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_plan_that_asks_for_it_all_the_same_is_refused_in_the_same_words():
    step = step_of(BY_NAME[AS_LINES[0]])
    program = analyse(step)
    with pytest.raises(PlanError, match="has a loop that runs as long as its data want") as refused:
        build_executable(step, derive_layout(program, Decision(4, 1, micro_batches=2)), Execution(micro_batches=2))
    assert refused.value.message == why_undivided(program).reason
