"""Calls, loops and branches inlined; trip counts; dead operations dropped; lines of the user's code kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec
from jax import lax

from automap_launch.errors import CaptureError
from automap_launch.program.flatten import flatten
from automap_launch.program.mlir import Module, read_module

X = Spec((4, 6), jnp.float32)
N = Spec((), jnp.int32)


def graph_of(build_step, function, *arguments, sources=True):
    step = build_step(function, (), *arguments)
    return flatten(read_module(step.modules["cpu"]), step.sources if sources else ())


def runs(graph, name):
    return [node.times for node in graph.nodes if node.name == name]


LOOPS = {
    "scan": (lambda x: lax.scan(lambda c, _: (jnp.tanh(c), None), x, None, length=7)[0], 7),
    "scan from the end": (lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), None), x[0], x, reverse=True)[0], 4),
    "fori": (lambda x: lax.fori_loop(3, 11, lambda i, c: jnp.tanh(c), x), 8),
    "by threes": (lambda x: lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 3, jnp.tanh(s[1])), (0, x))[1], 4),
    "down": (lambda x: lax.while_loop(lambda s: s[0] > 2, lambda s: (s[0] - 2, jnp.tanh(s[1])), (9, x))[1], 4),
    "inclusive": (lambda x: lax.while_loop(lambda s: s[0] <= 10, lambda s: (s[0] + 5, jnp.tanh(s[1])), (0, x))[1], 3),
    "unequal": (lambda x: lax.while_loop(lambda s: s[0] != 6, lambda s: (s[0] + 2, jnp.tanh(s[1])), (0, x))[1], 3),
    "bound on the left": (
        lambda x: lax.while_loop(lambda s: lax.gt(10, s[0]), lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, x))[1],
        10,
    ),
    "bound from outside": (
        lambda x: lax.while_loop(lambda s: s[0] < s[2], lambda s: (s[0] + 1, jnp.tanh(s[1]), s[2]), (0, x, 6))[1],
        6,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_trip_count(build_step, name):
    function, times = LOOPS[name]
    graph = graph_of(build_step, function, X)
    assert runs(graph, "tanh") == [times]
    assert not graph.notes


def test_nested_loops_multiply(build_step):
    def nested(x):
        inner = lambda c: lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c), c)  # noqa: E731
        return jnp.sin(lax.fori_loop(0, 5, lambda _, c: jnp.cos(inner(c)), x))

    graph = graph_of(build_step, nested, X)
    assert (runs(graph, "tanh"), runs(graph, "cosine"), runs(graph, "sine")) == ([15], [5], [1])


def test_forward_and_backward_loops_of_a_gradient_are_both_counted(build_step):
    def loss(x, w):
        return jnp.sum(lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0])

    graph = graph_of(build_step, jax.grad(loss, 1), X, Spec((9, 6, 6), jnp.float32))
    assert runs(graph, "dot_general") == [9, 9, 9]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: lax.fori_loop(0, n, lambda i, c: jnp.tanh(c), x),
        lambda x, n: lax.while_loop(lambda c: jnp.sum(c) > n, jnp.tanh, x),
        lambda x, n: lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] * 2 + n, jnp.tanh(s[1])), (1, x))[1],
    ],
)
def test_loop_of_unknown_length_counts_once_and_says_so_with_its_line(build_step, function):
    graph = graph_of(build_step, function, X, N)
    assert runs(graph, "tanh") == [1]
    (note,) = graph.notes
    assert "loop at step.py:" in note
    assert "depends on data" in note


def test_carried_value_that_changes_is_linked_back_and_an_unchanged_one_is_the_outer_value(build_step):
    graph = graph_of(build_step, lambda x, w: lax.fori_loop(0, 3, lambda _, c: c @ w, x), X, Spec((6, 6), jnp.float32))
    (dot,) = [node for node in graph.nodes if node.name == "dot_general"]
    assert dot.operands[1] == graph.arguments[1]
    carried = dict(graph.back_edges)
    assert carried[dot.operands[0]] == dot.results[0] == graph.results[0]


def test_both_branches_of_a_case_are_inlined(build_step):
    graph = graph_of(build_step, lambda x, n: lax.cond(n > 0, jnp.tanh, jnp.sin, x), X, N)
    assert runs(graph, "tanh") == runs(graph, "sine") == [1]
    (branch,) = [node for node in graph.nodes if node.name == "branch"]
    made = {node.name for node in graph.nodes if set(node.results) & set(branch.operands)}
    assert {"tanh", "sine"} <= made


def test_what_no_result_needs_is_dropped(build_step):
    def wasteful(x):
        lax.fori_loop(0, 3, lambda _, c: jnp.cos(c), x)
        kept, _ = lax.fori_loop(0, 3, lambda _, c: (jnp.tanh(c[0]), jnp.sin(c[1])), (x, x))
        return kept

    names = {node.name for node in graph_of(build_step, wasteful, X).nodes}
    assert "tanh" in names
    assert names.isdisjoint({"sine", "cosine"})


def test_values_come_before_their_uses(build_step):
    def step(x, w):
        return jax.grad(lambda x: jnp.sum(lax.scan(lambda c, w: (jnp.tanh(c @ w), c), x, w)[0]))(x)

    graph = graph_of(build_step, step, X, Spec((9, 6, 6), jnp.float32))
    known = set(graph.arguments)
    for node in graph.nodes:
        assert known.issuperset(node.operands)
        known.update(node.results)
    assert known == set(range(len(graph.values)))


def test_lines_of_another_module_are_not_used(build_step):
    step = build_step(jnp.tanh, (), X)
    module = read_module(step.modules["cpu"])
    assert [n.source for n in flatten(module, step.sources).nodes] == [step.sources[1]]
    assert [n.source for n in flatten(module, step.sources[:-1]).nodes] == [None]


def test_module_without_main_is_refused():
    with pytest.raises(CaptureError, match="no function main"):
        flatten(Module({}, 0))


def test_a_loop_that_never_runs_hands_on_what_it_was_given(build_step):
    graph = graph_of(
        build_step,
        lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1])), (5, x))[1],
        Spec((4,), jnp.float32),
    )
    assert graph.results == graph.arguments
    assert graph.nodes == []


def test_the_test_of_a_loop_of_unknown_length_is_kept(build_step):
    graph = graph_of(
        build_step,
        lambda x: lax.while_loop(lambda c: jnp.max(c) > 0.1, lambda c: 0.5 * c, x),
        Spec((4,), jnp.float32),
    )
    ((test, passed),) = graph.tests
    assert any(node.name == "compare" and test in node.results for node in graph.nodes)
    assert set(passed) >= set(graph.results)


def test_loops_are_numbered_and_their_trips_known(build_step):
    def function(x):
        x, _ = lax.scan(lambda c, _: (jnp.tanh(c), None), x, None, length=3)
        inner = lambda c, _: (lax.fori_loop(0, 2, lambda i, d: jnp.sin(d), c), None)  # noqa: E731
        return lax.scan(inner, x, None, length=5)[0]

    graph = graph_of(build_step, function, Spec((4,), jnp.float32))
    assert graph.trips == {0: 3, 1: 5}
    assert [node.loop for node in graph.nodes if node.name == "tanh"] == [0]
    assert [node.loop for node in graph.nodes if node.name == "sine"] == [1]
