"""Straight-line steps: loops unrolled, what they stack handed on directly, cases chosen by value."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.program import unroll as module
from automap_launch.program.batch_analysis import IndivisibleError
from automap_launch.program.mlir import read_module
from automap_launch.program.unroll import Line, unroll
from automap_launch.split.emit import Emitter
from automap_launch.split.mlir import Origin
from tests.program.conftest import make_step
from tests.runtime.captured_by_hand import capture
from tests.split.sections import all_independent, evaluate


def line_of(function: Any, *args: Any) -> tuple[Line, Any]:
    captured = capture(function, *args, states=0)
    return unroll(read_module(captured.artifact)), captured


def same(function: Any, *args: Any) -> Line:
    """The straight line computes what the function does."""
    line, captured = line_of(function, *args)
    emitter = Emitter(line, Origin(captured.artifact), all_independent(line), 1)
    section = emitter.whole(range(len(line.graph.nodes)), line.graph.results)
    values = dict(zip(line.graph.arguments, jax.tree.leaves(args), strict=True))
    made = evaluate(section, values)
    for got, expected in zip(made, jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    return line


def names(line: Line) -> Counter[str]:
    return Counter(node.name for node in line.graph.nodes)


def test_a_scan_over_layers_leaves_no_loop_and_no_stack_of_residuals() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jax.lax.scan(lambda c, p: (jnp.tanh(c @ p), None), x, w)[0].sum()

        return jax.grad(loss)(w)

    found = names(same(step, np.ones((3, 4, 4), "f") / 9, np.ones((2, 4), "f")))
    assert found["while"] == 0
    assert found["tanh"] == 3
    # Three writes of gradients into their stack; the residuals' stack is gone with its reads.
    assert found["dynamic_update_slice"] == 3
    assert found["dynamic_slice"] == 0


def test_a_loop_that_runs_as_long_as_data_want_stays() -> None:
    def step(x: Any, limit: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < limit, lambda c: c * 2 + limit, x)

    assert names(same(step, np.ones(3, "f"), np.float32(50)))["while"] == 1


def test_a_loop_that_is_too_long_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TRIPS", 5)

    def step(x: Any) -> Any:
        return jax.lax.fori_loop(0, 6, lambda i, c: c * 1.5 + i, x)

    assert names(same(step, np.ones(3, "f")))["while"] == 1


def test_both_sides_of_a_case_are_computed_and_one_is_chosen() -> None:
    def step(index: Any, flag: Any, x: Any) -> Any:
        chosen = jax.lax.switch(index, [jnp.sin, jnp.cos, jnp.tan], x)
        return chosen, jax.lax.cond(flag, lambda y: y + 1, lambda y: y * 2, x)

    for index in (-1, 0, 1, 2, 5):
        line = same(step, np.int32(index), np.bool_(index > 0), np.ones(3, "f") / 2)
        assert {"case", "if"}.isdisjoint(names(line))
        assert {"sine", "cosine", "select"} <= set(names(line))


def test_a_branch_that_may_not_run_where_it_is_not_chosen_is_refused() -> None:
    def endless(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() != 3, lambda c: c + 1, x)

    def printed(x: Any) -> Any:
        jax.debug.callback(lambda a: None, x)
        return x

    x = np.ones(3, "f")
    for branch, what in ((endless, "a loop that runs as long as its data"), (printed, "whose result it does not read")):
        step = make_step(
            lambda flag, x, branch=branch: jax.lax.cond(flag, branch, lambda y: y, x), (), np.bool_(True), x
        )
        with pytest.raises(IndivisibleError, match=what + r".* at step\.py:\d+") as refused:
            unroll(read_module(step.modules["cpu"]), step.sources)
        assert refused.value.refusal.source is not None


def test_a_call_whose_result_nobody_reads_is_kept() -> None:
    def step(x: Any) -> Any:
        jax.debug.callback(lambda a: None, x.sum())
        jnp.sin(x)
        return x * 2

    found = names(line_of(step, np.ones(3, "f"))[0])
    assert found["custom_call"] == 1
    assert found["reduce"] == 1
    assert found["sine"] == 0


def test_integers_wrap_as_on_the_device() -> None:
    def step(x: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            large = jnp.uint32(4_000_000_000) + i.astype(jnp.uint32) * jnp.uint32(200_000_000)
            return c + large.astype(jnp.float32)

        return jax.lax.fori_loop(0, 4, body, x)

    assert names(same(step, np.zeros((), "f")))["while"] == 0


def test_a_step_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 10)
    with pytest.raises(IndivisibleError, match="more than 10 operations"):
        line_of(lambda x: jax.lax.fori_loop(0, 20, lambda i, c: jnp.sin(c), x), np.ones(3, "f"))
