"""Each rule on the smallest program that shows it: which dims are tied, summed over, or wanted whole."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Spec
from jax import lax

from automap_launch.program import linkage, rules
from automap_launch.program.flatten import flatten
from automap_launch.program.graph import Graph, Node
from automap_launch.program.mlir import read_module
from automap_launch.program.program import Value
from automap_launch.program.rules.relations import RULES
from tests.program.conftest import make_step
from tests.program.reached import Reached
from tests.program.rule_cases import RULE_CASES

F32, I32 = jnp.float32, jnp.int32


def f32(*shape):
    return Spec(shape, F32)


def i32(*shape):
    return Spec(shape, I32)


def grouped(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=2)


def rows_from(x, ids):
    return jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (2, 6)))(ids)


def picked(x, positions, count):
    """One element for each row of `positions`, which address the first `count` dims."""
    dims = tuple(range(count))
    return lax.gather(x, positions, lax.GatherDimensionNumbers((), dims, dims), (1,) * count)


# (function, arguments, dims that must be one class, dims that must not): a dim is (argument, dim) or (-result - 1, dim)
TIES = {
    "elementwise": (
        jnp.add,
        [f32(4, 6), f32(4, 6)],
        [((0, 0), (1, 0), (-1, 0)), ((0, 1), (-1, 1))],
        [((0, 0), (0, 1))],
    ),
    "size 1 is broadcast, not tied": (jnp.add, [f32(4, 6), f32(1, 6)], [((0, 1), (1, 1))], [((0, 0), (1, 0))]),
    "transpose": (lambda x: x.transpose(2, 0, 1) * 2, [f32(2, 4, 6)], [((0, 2), (-1, 0)), ((0, 0), (-1, 1))], []),
    "matmul": (jnp.matmul, [f32(4, 6), f32(6, 8)], [((0, 0), (-1, 0)), ((0, 1), (1, 0)), ((1, 1), (-1, 1))], []),
    "batched dot": (
        lambda a, b: jnp.einsum("bik,bjk->bij", a, b),
        [f32(2, 4, 6), f32(2, 8, 6)],
        [((0, 0), (1, 0), (-1, 0)), ((0, 1), (-1, 1)), ((1, 1), (-1, 2)), ((0, 2), (1, 2))],
        [((0, 1), (1, 1))],
    ),
    "reduce": (lambda x: jnp.sum(x, 1), [f32(4, 6, 8)], [((0, 0), (-1, 0)), ((0, 2), (-1, 1))], []),
    "split goes to the major factor": (
        lambda x: jnp.tanh(x).reshape(4, 2, 6) * 2,
        [f32(4, 12)],
        [((0, 1), (-1, 1))],
        [((0, 1), (-1, 2))],
    ),
    "merge comes from the major factor": (
        lambda x: jnp.tanh(x).reshape(8, 6) * 2,
        [f32(2, 4, 6)],
        [((0, 0), (-1, 0)), ((0, 2), (-1, 1))],
        [((0, 1), (-1, 0))],
    ),
    "reshape of uneven runs": (lambda x: jnp.tanh(x).reshape(8, 3) * 2, [f32(4, 6)], [((0, 0), (-1, 0))], []),
    "slice": (lambda x: jnp.tanh(x)[:, :4] * 2, [f32(8, 6)], [((0, 0), (-1, 0))], [((0, 1), (-1, 1))]),
    "pad": (lambda x: jnp.tanh(jnp.pad(x, ((0, 0), (1, 2)))), [f32(8, 6)], [((0, 0), (-1, 0))], [((0, 1), (-1, 1))]),
    "roll by pad keeps no tie": (
        lambda x: jnp.tanh(lax.pad(jnp.tanh(x), 0.0, ((1, -1, 0), (0, 0, 0)))),
        [f32(8, 6)],
        [((0, 1), (-1, 1))],
        [((0, 0), (-1, 0))],
    ),
    "concatenate": (
        lambda a, b: jnp.tanh(jnp.concatenate([jnp.tanh(a), jnp.tanh(b)], 1)),
        [f32(8, 6), f32(8, 4)],
        [((0, 0), (1, 0), (-1, 0))],
        [((0, 1), (-1, 1))],
    ),
    "reverse": (lambda x: jnp.tanh(jnp.tanh(x)[::-1]), [f32(8, 6)], [((0, 1), (-1, 1))], [((0, 0), (-1, 0))]),
    "embedding lookup": (
        lambda table, ids: jnp.tanh(table)[ids] * 2,
        [f32(32, 6), i32(4, 8)],
        [((0, 1), (-1, 2))],
        [((0, 0), (-1, 0)), ((0, 0), (-1, 1))],
    ),
    "take_along_axis": (
        lambda x, i: jnp.tanh(jnp.take_along_axis(jnp.tanh(x), i[:, None], 1)),
        [f32(4, 6), i32(4)],
        [((0, 0), (-1, 0))],
        [],
    ),
    "arange counts as batching": (
        lambda x, i: jnp.tanh(jnp.tanh(x)[jnp.arange(4), i]),
        [f32(4, 6), i32(4)],
        [((0, 0), (-1, 0))],
        [],
    ),
    "scatter-add": (
        lambda table, ids, rows: jnp.tanh(jnp.tanh(table).at[ids].add(rows)),
        [f32(32, 6), i32(8), f32(8, 6)],
        [((0, 0), (-1, 0)), ((0, 1), (2, 1), (-1, 1))],
        [((2, 0), (0, 0))],
    ),
    "dynamic slice of a part": (
        lambda x, i: jnp.tanh(lax.dynamic_slice(jnp.tanh(x), (i, 0), (4, 6))),
        [f32(8, 6), i32()],
        [((0, 1), (-1, 1))],
        [((0, 0), (-1, 0))],
    ),
    "dynamic update": (
        lambda x, u, i: jnp.tanh(lax.dynamic_update_slice(x, jnp.tanh(u), (i, 0))),
        [f32(8, 6), f32(2, 6), i32()],
        [((0, 0), (-1, 0)), ((0, 1), (1, 1))],
        [((0, 0), (1, 0))],
    ),
    "sort": (
        lambda x: jnp.tanh(jnp.sort(jnp.tanh(x), 1)),
        [f32(8, 6)],
        [((0, 0), (-1, 0))],
        [((0, 1), (-1, 1))],
    ),
    "cumulative sum": (lambda x: jnp.tanh(jnp.cumsum(x, 1)), [f32(8, 6)], [((0, 0), (-1, 0))], []),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        [f32(8, 10, 10, 4), f32(3, 3, 4, 6)],
        [((0, 0), (-1, 0)), ((0, 3), (1, 2)), ((1, 3), (-1, 3))],
        [],
    ),
    "depthwise convolution": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=6
        ),
        [f32(8, 10, 10, 6), f32(3, 3, 1, 6)],
        [((0, 0), (-1, 0)), ((0, 3), (1, 3), (-1, 3))],
        [],
    ),
    "cholesky": (lambda x: jnp.tanh(jnp.linalg.cholesky(jnp.tanh(x))), [f32(4, 6, 6)], [((0, 0), (-1, 0))], []),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), [f32(4, 8)], [((0, 0), (-1, 0))], []),
    "grouped convolution": (
        grouped,
        [f32(8, 10, 10, 4), f32(3, 3, 2, 6)],
        [((0, 0), (-1, 0))],
        [((0, 3), (1, 2)), ((1, 3), (-1, 3)), ((0, 3), (-1, 3))],
    ),
    "weight gradient of a grouped convolution": (
        jax.grad(lambda w, x: jnp.sum(grouped(x, w) ** 2)),
        [f32(3, 3, 2, 6), f32(8, 10, 10, 4)],
        [],
        [((0, 3), (1, 3)), ((0, 2), (1, 3)), ((-1, 3), (1, 3))],
    ),
    "argmax": (lambda x: jnp.argmax(jnp.tanh(x), 1), [f32(4, 6)], [((0, 0), (-1, 0))], []),
    "windows of two tensors": (
        lambda x, y: lax.reduce_window(
            (x, y), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1, 2), (1, 2), "VALID"
        ),
        [f32(4, 6), f32(4, 6)],
        [((0, 0), (1, 0), (-1, 0), (-2, 0))],
        [((0, 1), (-1, 1))],
    ),
    "some rows from each position on": (
        rows_from,
        [f32(32, 6), i32(4)],
        [((0, 1), (-1, 2)), ((1, 0), (-1, 0))],
        [((0, 0), (-1, 1))],
    ),
    "some rows from each position on, gradient": (
        jax.grad(lambda x, ids: jnp.sum(rows_from(jnp.tanh(x), ids) ** 2)),
        [f32(32, 6), i32(4)],
        [((0, 1), (-1, 1))],
        [],
    ),
    "rows that are set": (
        lambda t, ids, rows: jnp.tanh(t).at[ids].set(jnp.tanh(rows)),
        [f32(32, 6), i32(8), f32(8, 6)],
        [((0, 0), (-1, 0)), ((0, 1), (2, 1))],
        [((2, 0), (0, 0))],
    ),
    "positions joined from pairs": (
        lambda x, pairs, last: jnp.tanh(picked(x, lax.concatenate([pairs, last[:, None]], 1), 3)),
        [f32(4, 6, 5), i32(4, 2), i32(4)],
        [((1, 0), (-1, 0))],
        [((0, 0), (-1, 0))],
    ),
    "a window beside a counted position": (
        lambda x, i: jnp.tanh(
            lax.gather(x, jnp.stack([jnp.arange(4), i], 1), lax.GatherDimensionNumbers((1,), (0,), (0, 1)), (1, 3))
        ),
        [f32(4, 6), i32(4)],
        [((0, 0), (-1, 0))],
        [((0, 1), (-1, 1))],
    ),
    "a count in another type, reshaped": (
        lambda x, i: jnp.tanh(
            picked(x, lax.concatenate([lax.iota(jnp.int16, 4).reshape(1, 4).reshape(4, 1).astype(I32), i], 1), 2)
        ),
        [f32(4, 6), i32(4, 1)],
        [((0, 0), (-1, 0))],
        [],
    ),
    "cond": (
        lambda p, x: lax.cond(p > 0, jnp.tanh, lambda x: x * 2, x),
        [i32(), f32(4, 6)],
        [((1, 0), (-1, 0)), ((1, 1), (-1, 1))],
        [],
    ),
    "top_k": (
        lambda x: jnp.tanh(lax.top_k(jnp.tanh(x), 3)[0]),
        [f32(4, 8)],
        [((0, 0), (-1, 0))],
        [((0, 1), (-1, 1))],
    ),
}


@pytest.mark.parametrize("name", TIES)
def test_ties(linked, name):
    function, arguments, same, different = TIES[name]
    found = linked(function, *arguments)

    def class_of(dim):
        place, k = dim
        return (found.arguments[place] if place >= 0 else found.results[-place - 1])[k]

    for dims in same:
        classes = {class_of(dim) for dim in dims}
        assert len(classes) == 1, f"{dims} are not one class: {classes}"
        assert None not in classes, f"{dims} may not be sharded"
    for left, right in different:
        assert class_of(left) is None or class_of(left) != class_of(right), f"{left} and {right} are tied"


def test_contracted_dims_of_a_dot_are_those_of_both_operands(linked):
    found = linked(lambda a, b: jnp.einsum("bik,bkj->bij", a, b), f32(2, 4, 6), f32(2, 6, 8))
    assert found.contracted("dot_general") == {(0, 2), (1, 1)}


def test_a_sum_is_contracted_and_an_argmax_wants_its_dim_whole(linked):
    assert linked(lambda x: jnp.sum(x, 1), f32(4, 6)).contracted("reduce") == {(0, 1)}
    argmax = linked(lambda x: jnp.argmax(jnp.tanh(x), 1), f32(4, 6))
    assert argmax.contracted("reduce") == set()
    assert ("0", 1) in argmax.whole("reduce")


@pytest.mark.parametrize(("dtype", "sharded"), [(jnp.bool_, True), (I32, False)])
def test_a_dim_is_not_sharded_whose_reduction_no_collective_completes(linked, dtype, sharded):
    def reduced(x):
        return lax.reduce((x > 0).astype(dtype), np.zeros((), dtype), lax.bitwise_or, (1,)), jnp.tanh(x)

    rows, columns = linked(reduced, f32(4, 6)).arguments[0]
    assert rows is not None
    assert (columns is not None) == sharded


def test_a_lookup_is_summed_over_the_shards_of_its_table(linked):
    found = linked(lambda table, ids: table[ids], f32(32, 6), i32(8))
    assert found.contracted("gather") == {(0, 0)}


def test_updates_sharded_by_row_leave_a_partial_sum_of_a_scatter(linked):
    found = linked(lambda ids, rows: jnp.zeros((32, 6)).at[ids].add(rows), i32(8), f32(8, 6))
    assert found.contracted("scatter") == {(1, 0), (2, 0)}


def test_rows_that_are_set_and_not_added_are_wanted_whole(linked):
    found = linked(lambda t, ids, rows: jnp.tanh(t).at[ids].set(jnp.tanh(rows)), f32(32, 6), i32(8), f32(8, 6))
    assert found.contracted("scatter") == set()
    assert ("2", 0) in found.whole("scatter")


def test_convolution_contracts_input_features_and_shards_no_spatial_dim(linked):
    found = linked(*TIES["convolution"][:1], *TIES["convolution"][1])
    assert found.contracted("convolution") == {(0, 3), (1, 2)}
    assert found.arguments[0][1:3] == (None, None)
    assert found.results[0][1:3] == (None, None)


def test_minor_factor_of_a_split_is_wanted_whole(linked):
    found = linked(lambda x: jnp.tanh(jnp.tanh(x).reshape(4, 2, 6)), f32(4, 12))
    assert found.whole("reshape") == {("-1", 2)}


def test_a_dim_walked_by_a_loop_is_never_sharded(linked):
    def layers(x, w):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    found = linked(layers, f32(8, 6), f32(4, 6, 6))
    assert found.arguments[1][0] is None
    assert None not in found.arguments[1][1:]


def test_pooling_wants_windows_whole_and_its_gradient_too(linked):
    def pool(x):
        x = jnp.tanh(x)
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2)

    found = linked(jax.grad(pool), f32(8, 4, 4, 6))
    assert {dim for slot, dim in found.whole("select_and_scatter") if slot == "0"} == {1, 2}
    assert {dim for slot, dim in found.whole("reduce_window") if slot == "0"} == {1, 2}
    assert found.arguments[0][0] == found.results[0][0] is not None


def test_weight_gradient_of_a_depthwise_convolution_ties_its_channels(linked):
    function, arguments, _, _ = TIES["depthwise convolution"]
    found = linked(jax.grad(lambda w, x: jnp.sum(function(x, w) ** 2)), arguments[1], arguments[0])
    assert found.arguments[0][3] == found.arguments[1][3] == found.results[0][3] is not None


def test_constant_mask_of_two_places_does_not_tie_them(linked):
    def two(a, b):
        zeros = jnp.zeros((4, 6))
        return jnp.where(a > 0, a, zeros), jnp.where(b > 0, b, zeros)

    found = linked(two, f32(4, 6), f32(4, 6))
    assert found.arguments[0] == found.results[0]
    assert set(found.arguments[0]).isdisjoint(found.arguments[1])


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: jnp.tanh(jnp.tanh(x)[:4]), [f32(8, 6)]),
        (lambda x: jnp.tanh(lax.dynamic_slice_in_dim(jnp.tanh(x), 2, 4)), [f32(8, 6)]),
        (lambda x: lax.reduce_window(jnp.tanh(x), 0.0, lax.add, (2, 1), (2, 1), "VALID"), [f32(8, 6)]),
    ],
)
def test_a_dim_that_is_cut_or_windowed_is_known(linked, function, arguments):
    found = linked(function, *arguments)
    rows, columns = found.arguments[0]
    assert rows in found.linkage.cut
    assert columns not in found.linkage.cut
    without = found.linkage.without(found.linkage.cut)
    assert rows not in {c for dims in without.classes for c in dims}
    assert columns in {c for dims in without.classes for c in dims}
    assert all(without.classes[v][d] is not None for pairs in without.whole for v, d in pairs)


def test_a_padded_dim_is_cut_where_it_is_longest(linked):
    found = linked(lambda x: jnp.tanh(jnp.pad(jnp.tanh(x), ((1, 2), (0, 0)))), f32(8, 6))
    assert found.results[0][0] in found.linkage.cut
    assert found.arguments[0][0] not in found.linkage.cut


def test_a_merge_whose_major_factor_may_not_be_sharded_is_not_sharded_either(linked):
    def flattened(x, kernel, dense):
        numbers = ("NHWC", "HWIO", "NHWC")
        h = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return h.reshape(4, -1) @ dense

    found = linked(flattened, f32(4, 8, 8, 3), f32(3, 3, 3, 6), f32(8 * 8 * 6, 10))
    assert found.arguments[2][0] is None
    assert found.arguments[2][1] is not None


def test_the_largest_of_a_dim_are_picked_from_a_whole_operand(linked):
    """XLA gathers what it is given over the data axis, too. So it does before a Fourier transform."""
    found = linked(lambda x: lax.top_k(jnp.tanh(x), 2)[0] * 2, f32(4, 6))
    assert found.arguments[0][0] == found.results[0][0] is not None
    assert {dim for slot, dim in found.whole("slice") if slot == "0"} == {0}
    transformed = linked(lambda x: jnp.abs(jnp.fft.rfft(jnp.tanh(x), axis=1)), f32(4, 6))
    assert {dim for slot, dim in transformed.whole("fft") if slot == "0"} == {0, 1}
    assert transformed.arguments[0][0] == transformed.results[0][0] is not None
    assert linked(lambda x: jnp.sort(jnp.tanh(x), 1) * 2, f32(4, 6)).whole("sort") == {("0", 1), ("-1", 1)}


def by_hand(name, operands, results, **attributes):
    """What the rules say of one operation, alone in its graph: (links, dims that are wanted whole, unknown)."""
    graph = Graph()
    values = [graph.add_value(Value(shape, "float32")) for shape in operands]
    made = [graph.add_value(Value(shape, "float32")) for shape in results]
    found = rules.relations_of(graph, Node(name, values, made, attributes), {})
    return set(found.links), set(found.whole), found.unknown


def call(target, operands, results):
    return by_hand("custom_call", operands, results, call_target_name=target)


# (the operation, what the rules say): values are numbered, operands first
CALLS = {
    "an annotation": (
        lambda: call("Sharding", [(8, 4)], [(8, 4)]),
        ({((0, 0), (1, 0)), ((0, 1), (1, 1))}, set(), False),
    ),
    "random bits of a GPU": (
        lambda: call("cu_threefry2x32_ffi", [(2,), (8,)], [(8,)]),
        ({((1, 0), (2, 0))}, set(), False),
    ),
    "a library's best of a row": (
        lambda: call("__gpu$topk", [(8, 4)], [(8, 2), (8, 2)]),
        ({((0, 0), (1, 0)), ((0, 0), (2, 0))}, {(0, 0), (0, 1), (1, 1), (2, 1)}, False),
    ),
    "the best of a row": (
        lambda: by_hand("top_k", [(8, 4)], [(8, 2), (8, 2)]),
        ({((0, 0), (1, 0)), ((0, 0), (2, 0))}, {(0, 0), (0, 1), (1, 1), (2, 1)}, False),
    ),
    "a call that nobody knows": (
        lambda: call("my_kernel", [(8, 4)], [(8, 1)]),
        (set(), {(0, 0), (0, 1), (1, 0)}, True),
    ),
    "an operation without a rule": (lambda: by_hand("einsum", [(8,)], [(4,)]), (set(), {(0, 0), (1, 0)}, True)),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations_that_the_cpu_has_not(name):
    operation, expected = CALLS[name]
    assert operation() == expected


def test_every_statement_of_every_rule_is_met(monkeypatch):
    """By programs that `test_collectives` compiles, by those of this file, or by hand."""
    reached = Reached(Path(rules.__file__).parent)
    watched = reached.watched(rules.relations_of)
    monkeypatch.setattr(linkage, "relations_of", watched)
    monkeypatch.setattr(rules, "relations_of", watched)
    steps = [make_step(function, state, *batch) for (function, state, batch), _ in RULE_CASES.values()]
    steps += [make_step(function, (), *arguments) for function, arguments, _, _ in TIES.values()]
    steps.append(make_step(lambda x: jnp.abs(jnp.fft.rfft(jnp.tanh(x), axis=1)), (), f32(4, 6)))
    for step in steps:
        linkage.link(flatten(read_module(step.modules["cpu"]), step.sources))
    for operation, _ in CALLS.values():
        operation()
    assert reached.missed() == {}


# Rules whose operations XLA never runs sharded, by the test in this file that shows it.
ELSEWHERE = {
    "top_k": test_the_largest_of_a_dim_are_picked_from_a_whole_operand,
    "fft": test_the_largest_of_a_dim_are_picked_from_a_whole_operand,
}


def test_every_rule_is_held_against_the_partitioner():
    """`test_collectives` compiles these programs; here: that one of them has an operation of each rule."""
    found = set(ELSEWHERE)
    for (function, state, batch), _ in RULE_CASES.values():
        step = make_step(function, state, *batch)
        found |= {node.name for node in flatten(read_module(step.modules["cpu"]), step.sources).nodes}
    names = defaultdict(set)
    for name, rule in RULES.items():
        names[rule].add(name)
    assert [rule.__name__ for rule, own in names.items() if found.isdisjoint(own)] == []
