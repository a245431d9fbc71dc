"""The batch analysis judged by numbers: a step in micro-batches equals the step, or it is refused."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.program.analyse import analyse
from tests.program import micro_batches
from tests.program.adversarial import CASES, Case, data, nll, params, sgd, step_of
from tests.program.conftest import make_step
from tests.program.micro_batches import run, run_in_micro_batches

BY_NAME = {case.name: case for case in CASES}


def analysis_of(name, **options):
    step = step_of(BY_NAME[name])
    return step, analyse(step, **options).batch_analysis


def trained(step):
    return [k for k, a in enumerate(step.arguments) if a.role == "state" and a.dtype == "float32" and a.shape]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_exact_or_refused(case: Case):
    step = step_of(case)
    analysis = analyse(step).batch_analysis
    if case.refused is not None:
        assert case.refused in {refusal.kind for refusal in analysis.refusals}
        assert analysis.max_micro_batches == 1
        assert all(refusal.source is not None for refusal in analysis.refusals)
        return
    assert analysis.refusals == ()
    m = min(4, analysis.max_micro_batches)
    assert m > 1
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves((case.state, case.batch))]
    expected = run(step.modules["cpu"], arrays)
    got = run_in_micro_batches(step, analysis, trained(step), arrays, m)
    for result, a, b in zip(step.results, expected, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5, err_msg=result.path)


def test_a_dropped_micro_batch_is_noticed(monkeypatch):
    step, analysis = analysis_of("mean_of_losses")
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves((BY_NAME["mean_of_losses"].state, data()))]
    expected = run(step.modules["cpu"], arrays)
    monkeypatch.setattr(micro_batches, "REDUCE", {"add": _AllButTheLast})
    got = run_in_micro_batches(step, analysis, trained(step), arrays, 4)
    assert not np.allclose(got[0], expected[0], rtol=1e-4, atol=1e-5)


class _AllButTheLast:
    @staticmethod
    def reduce(parts):
        return np.add.reduce(parts[:-1])


def test_refusals_say_what_is_wrong_in_which_line():
    _, analysis = analysis_of("batch_norm")
    (refusal,) = analysis.refusals
    assert re.fullmatch(
        r"a sum or mean over the batch at step\.py:\d+ is used for each example at step\.py:\d+", refusal.reason
    )
    _, analysis = analysis_of("trimmed_mean")
    assert re.fullmatch(
        r"a sort of the batch, or the best of it at step\.py:\d+ needs the whole batch at once",
        analysis.refusals[0].reason,
    )


def test_of_a_loop_the_operation_of_its_body_is_named_that_needs_the_whole_batch():
    def step(w, x):
        def layer(h, w):
            h = jnp.tanh(h @ w)
            return h + 0.1 * jnp.cumsum(h, axis=0), None

        def loss(w):
            return (jax.lax.scan(layer, x, w)[0] ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    made = make_step(step, (jnp.ones((4, 8, 8)),), jnp.ones((32, 8)))
    (refusal,) = analyse(made).batch_analysis.refusals
    assert (refusal.kind, refusal.op) == ("loop", "reduce_window")
    assert refusal.source is not None
    assert "running sum" in refusal.reason


@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_by_fast_variance", "batch_norm_by_one_product"])
def test_batch_norm_is_allowed_statistics_of_its_own(name):
    _, refused = analysis_of(name)
    assert all(refusal.local_statistics for refusal in refused.refusals)
    step, analysis = analysis_of(name, local_statistics=True)
    assert analysis.refusals == ()
    assert analysis.max_micro_batches == 8
    case = BY_NAME[name]
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves((case.state, case.batch))]
    got = run_in_micro_batches(step, analysis, trained(step), arrays, 2, local_statistics=True)
    halves = [
        jax.tree.leaves(case.step(*case.state, *(a[part] for a in case.batch))) for part in (np.s_[:4], np.s_[4:])
    ]
    for result, a, b, value in zip(step.results, *halves, got, strict=True):
        np.testing.assert_allclose(value, (a + b) / 2, rtol=1e-4, atol=1e-5, err_msg=result.path)


@pytest.mark.parametrize("name", ["hardest_examples", "contrast_of_all_pairs", "worst_example"])
def test_what_is_no_statistic_stays_refused(name):
    _, analysis = analysis_of(name, local_statistics=True)
    assert analysis.refusals


def test_prologue_is_what_comes_from_data_alone():
    step, analysis = analysis_of("masked_mean")
    (value,) = analysis.prologue_values
    assert analysis.states[value].kind == "none"
    program = analyse(step)
    assert program.values[value].shape == ()
    assert {program.ops[k].name for k in analysis.prologue} <= {"constant", "reduce"}


def test_a_permuted_batch_is_handed_on_in_parts():
    _, analysis = analysis_of("reversed_inputs")
    assert {analysis.states[v].kind for v in analysis.prologue_values} == {"batch"}


def test_each_gradient_is_one_sum():
    step, analysis = analysis_of("mean_of_losses")
    program = analyse(step)
    summed = sorted(program.values[v].shape for v in analysis.accumulated)
    assert summed == [(), (6, 10), (10,), (10, 3)]
    assert analysis.gathered == ()


def test_parts_that_the_user_cuts_bound_the_number_of_micro_batches():
    _, analysis = analysis_of("chunks_accumulated_by_the_user")
    assert analysis.max_micro_batches == 4
    assert {state.outer for state in analysis.arguments.values()} == {2}


def test_effects_happen_once_a_step():
    def step(p, x, y):
        value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
        jax.debug.callback(lambda loss: None, value)
        return sgd(p, g), value

    built = make_step(step, (params(),), *data())
    program = analyse(built)
    calls = [k for k, op in enumerate(program.ops) if op.name == "custom_call"]
    assert calls
    assert set(calls) <= set(program.batch_analysis.update)
    assert program.batch_analysis.refusals == ()


def test_a_step_without_a_batch_is_refused():
    def step(p, x):
        return jax.tree.map(lambda a: a * x, p)

    analysis = analyse(make_step(step, (params(),), np.float32(2))).batch_analysis
    assert [refusal.kind for refusal in analysis.refusals] == ["no batch"]
