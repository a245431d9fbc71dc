"""What happens with plans once XLA has compiled them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from automap_launch.plan.compiled import CompiledPlan
from automap_launch.plan.cost import CostModel, Estimate
from automap_launch.plan.decision import Decision
from automap_launch.search.config import SearchConfig
from automap_launch.verification import (
    ChildCompiler,
    CompilerFailedError,
    NotCompiledError,
    plans_to_verify,
    table,
    verify,
)
from tests.plan import models
from tests.plan.programs import cluster, two_blocks

MODEL = CostModel(two_blocks(), cluster())
LIMIT = MODEL.cluster.device.memory_bytes
FAVOURITE, NEXT, PLAIN = Decision(4, 2, frozenset({2})), Decision(4, 2, frozenset({2}), "state"), Decision(8, 1)
PLANS = {"plan": FAVOURITE, "runner_up": NEXT, "data_parallel": PLAIN}


class Compiler:
    """Answers with memory as a multiple of what is predicted, or of the device's."""

    def __init__(self, off: dict[Decision, float]) -> None:
        self.off = off
        self.asked: list[Decision] = []

    def __call__(self, decision: Decision) -> CompiledPlan:
        self.asked.append(decision)
        return CompiledPlan(int(self.off.get(decision, 0.5) * LIMIT), 7)


def front(*decisions: Decision) -> list[tuple[Decision, Estimate]]:
    return [(decision, MODEL.estimate(decision)) for decision in decisions]


def test_the_number_of_plans_is_the_users_or_one_where_the_launch_does_not_compile_for_cpus_itself() -> None:
    assert [plans_to_verify(SearchConfig(), platform) for platform in ("cpu", "cuda", "tpu")] == [0, 1, 1]
    assert plans_to_verify(SearchConfig(verify_top_k=2), "cpu") == 2
    assert plans_to_verify(SearchConfig(verify_top_k=0), "cuda") == 0


@pytest.mark.parametrize("top_k", [0, 1, 2, 5])
def test_so_many_plans_are_compiled_and_those_that_fit_are_kept(top_k: int) -> None:
    compiler = Compiler({})
    verified = verify(PLANS, front(FAVOURITE), MODEL, top_k, compiler)
    assert compiler.asked == list(PLANS.values())[:top_k]
    assert (verified.plans, verified.notes) == (PLANS, ())
    assert [check.compiled_memory_bytes for check in verified.checks] == [LIMIT // 2] * min(top_k, 3)
    assert [check.fits for check in verified.checks] == [True] * min(top_k, 3)


def test_in_place_of_a_favourite_that_does_not_fit_comes_the_next_that_should() -> None:
    memory = [estimate.memory.total for _, estimate in front(FAVOURITE, NEXT)]
    assert memory[1] < memory[0]
    just_too_much = 0.99 * memory[0] / memory[1]  # so that the next one fits by the corrected prediction
    compiler = Compiler({FAVOURITE: just_too_much})
    verified = verify(PLANS, front(FAVOURITE, NEXT), MODEL, 1, compiler)
    assert compiler.asked == [FAVOURITE, NEXT]
    assert verified.plans == {"plan": NEXT, "data_parallel": PLAIN}  # the runner-up is the favourite now
    assert [check.fits for check in verified.checks] == [False, True]
    assert "the next best plan is taken" in verified.notes[0]
    assert table(verified.checks).row_count == 2


def test_where_no_other_plan_should_fit_the_favourite_stays_and_the_user_is_told() -> None:
    compiler = Compiler({FAVOURITE: 1000.0})
    verified = verify(PLANS, front(FAVOURITE, NEXT), MODEL, 1, compiler)
    assert compiler.asked == [FAVOURITE]
    assert verified.plans == PLANS
    assert "taken all the same" in verified.notes[0]


def test_a_rival_that_does_not_fit_is_left_out() -> None:
    verified = verify(PLANS, front(FAVOURITE), MODEL, 3, Compiler({PLAIN: 1.1}))
    assert list(verified.plans) == ["plan", "runner_up"]
    assert "left out" in verified.notes[0]


def test_a_plan_that_cannot_be_compiled_is_taken_as_predicted_and_says_why() -> None:
    def never(decision: Decision) -> CompiledPlan:
        raise NotCompiledError("out of patience")

    verified = verify(PLANS, front(FAVOURITE), MODEL, 1, never)
    assert verified.plans == PLANS
    (check,) = verified.checks
    assert (check.compiled_memory_bytes, check.fits, check.reason) == (None, None, "out of patience")
    assert "out of patience" in verified.notes[0]
    assert table(verified.checks).row_count == 0


def test_in_place_of_a_favourite_that_xla_fails_on_comes_the_next() -> None:
    works = Compiler({})

    def fails(decision: Decision) -> CompiledPlan:
        if decision == FAVOURITE:
            raise CompilerFailedError("Check failed: partitioner")
        return works(decision)

    verified = verify(PLANS, front(FAVOURITE, NEXT), MODEL, 1, fails)
    assert verified.plans == {"plan": NEXT, "data_parallel": PLAIN}
    assert [(check.fits, check.compiled_memory_bytes is None) for check in verified.checks] == [
        (False, True),
        (True, False),
    ]
    assert "XLA fails on" in verified.notes[0]
    assert "Check failed: partitioner" in verified.notes[0]
    rivals = {"plan": NEXT, "runner_up": FAVOURITE}
    assert verify(rivals, front(NEXT), MODEL, 2, fails).plans == {"plan": NEXT}


def test_a_plan_that_the_step_cannot_be_cut_by_is_no_plan(tmp_path: Path) -> None:
    from automap_launch.program.analyse import analyse

    step = models.capture(_contrasted, jnp.ones(4), jnp.zeros(()), jnp.ones((32, 4)), states=2)
    step.save(tmp_path / "train_step")
    compiler = ChildCompiler(CostModel(analyse(step, "cpu"), cluster()), tmp_path / "train_step", 100.0, 32, "100s")
    with pytest.raises(CompilerFailedError, match="batch"):
        compiler(Decision(8, 1, micro_batches=2))


def _contrasted(w: jax.Array, steps: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Each example against all others: no batch in parts."""

    def loss(w: jax.Array) -> jax.Array:
        h = jnp.tanh(x * w)
        return jax.nn.logsumexp(h @ h.T, axis=1).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, steps + 1, value


def test_stages_are_not_compiled_together(tmp_path: Path) -> None:
    compiler = ChildCompiler(MODEL, tmp_path, 100.0, 32, "100s")
    with pytest.raises(NotCompiledError, match="stage of a pipeline"):
        compiler(Decision(4, 1, micro_batches=2, cuts=(1,), schedule="gpipe"))


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[CostModel, Path]:
    from automap_launch.program.analyse import analyse

    step = models.transformer()
    folder = tmp_path_factory.mktemp("captured") / "train_step"
    step.save(folder)
    return CostModel(analyse(step, "cpu"), cluster()), folder


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_xla_compiles_a_plan_for_its_devices_in_a_process_of_its_own(
    captured: tuple[CostModel, Path], micro_batches: int
) -> None:
    model, folder = captured
    decision = replace(Decision(4, 1), data=model.cluster.devices, micro_batches=micro_batches)
    compiled = ChildCompiler(model, folder, 100.0, 32, "100s")(decision)
    predicted = sum(use.bytes for use in model.breakdown(decision).collectives)
    assert compiled.collectives == pytest.approx(predicted, rel=0.02)
    assert compiled.memory == pytest.approx(model.estimate(decision).memory.total, rel=0.2)


def test_time_that_runs_out_and_a_step_that_is_not_there_are_told(captured: tuple[CostModel, Path]) -> None:
    model, folder = captured
    plain = Decision(model.cluster.devices, 1)
    with pytest.raises(NotCompiledError, match=r"search\.verify_timeout=10ms"):
        ChildCompiler(model, folder, 0.01, 32, "10ms")(plain)
    with pytest.raises(NotCompiledError, match="No such file"):
        ChildCompiler(model, folder / "nowhere", 100.0, 32, "100s")(plain)
