"""Batch rules on operations that no program of JAX has, and that every rule's every end is met by some program."""

from __future__ import annotations

from pathlib import Path

import pytest

from automap_launch.program import batch_states, state_rules
from automap_launch.program.analyse import analyse
from automap_launch.program.batch_analysis import NONE, State
from automap_launch.program.graph import Graph, Node
from automap_launch.program.program import Value
from automap_launch.program.state_rules import Site, UnsplitError, states_of
from automap_launch.program.state_rules.site import batch, partial
from tests.program.adversarial import CASES, step_of
from tests.program.reached import Reached

ROWS = batch(0)
SCATTER = {
    "update_window": (1,),
    "inserted": (0,),
    "operand_batch": (),
    "index_batch": (),
    "index_map": (0,),
    "index_vector_dim": 1,
}


def site(name, operands, results, local=(), **attributes):
    """An operation on operands of (shape, state), alone in its graph. `local`: operands that a micro-batch takes as
    its own."""
    graph = Graph()
    values = [graph.add_value(Value(shape, "float32")) for shape, _ in operands]
    made = [graph.add_value(Value(shape, "float32")) for shape in results]
    node = Node(name, values, made, attributes, reducer="add")
    states = [state for _, state in operands] + [NONE] * len(made)
    return Site(graph, node, states, set(), {}, frozenset(values[k] for k in local))


def call(target, operands, results):
    return site("custom_call", operands, results, call_target_name=target)


# (the operation, the states of its results or a part of why it is refused)
SITES = {
    "an annotation": (call("Sharding", [((8, 4), ROWS)], [(8, 4)]), [ROWS]),
    "random bits of a GPU": (
        call("cu_threefry2x32_ffi", [((2,), NONE), ((8, 4), ROWS)], [(8, 4), (8, 4)]),
        [ROWS, ROWS],
    ),
    "a call that is elementwise, but to results of two shapes": (
        call("cu_threefry2x32", [((8, 4), ROWS)], [(8, 4), (8,)]),
        "cannot look into",
    ),
    "a call that is elementwise, but on examples of another shape": (
        call("cu_threefry2x32", [((8,), ROWS), ((8, 4), NONE)], [(8, 4)]),
        "cannot look into",
    ),
    "a library's best of a row": (call("__gpu$topk", [((8, 4), ROWS)], [(8, 2), (8, 2)]), [ROWS, ROWS]),
    "a library's best of the batch": (call("__gpu$topk", [((4, 8), batch(1))], [(4, 2), (4, 2)]), "best of it"),
    "linear algebra within examples": (
        call("cusolver_potrf_ffi", [((8, 4, 4), ROWS)], [(8, 4, 4), (8, 1, 1)]),
        [ROWS, ROWS],
    ),
    "linear algebra across examples": (call("cusolver_geqrf_ffi", [((8, 4), ROWS)], [(8, 4)]), "linear algebra"),
    "a call that nobody knows": (call("my_kernel", [((8, 4), ROWS)], [(8, 4)]), "my_kernel, which the analysis"),
    "a call back into Python": (call("xla_ffi_python_cpu_callback", [((8,), ROWS)], [(8,)]), "back into Python"),
    "an operation without a rule": (site("einsum", [((8, 4), ROWS)], [(8,)]), "einsum, which the analysis"),
    "implicit broadcasting": (
        site("broadcast_add", [((8, 4), ROWS), ((4,), NONE)], [(8, 4)]),
        "tensors of different shapes",
    ),
    "a scatter of two tensors": (
        site(
            "scatter",
            [((5, 4), NONE), ((5, 4), NONE), ((8, 1), ROWS), ((8, 4), ROWS), ((8, 4), ROWS)],
            [(5, 4), (5, 4)],
            scatter_dimension_numbers=SCATTER,
        ),
        "several tensors",
    ),
    "a sum that begins with a micro-batch's own statistic": (
        site("reduce", [((8, 4), ROWS), ((), partial("add"))], [(8,)], local=[1], dimensions=(1,)),
        "initial value depends on the batch",
    ),
    "a value without a dim for the batch": (
        site("cholesky", [((8, 4, 4), ROWS), ((), NONE)], [(8, 4, 4)]),
        "other values together by position",
    ),
}


@pytest.mark.parametrize("name", SITES)
def test_operations_that_no_program_of_jax_has(name):
    operation, expected = SITES[name]
    if isinstance(expected, str):
        with pytest.raises(UnsplitError, match=expected):
            states_of(operation)
    else:
        assert states_of(operation) == expected


def test_values_reduce_by_sums_and_extrema_only():
    assert partial("max") == State("partial", reduction="max")
    with pytest.raises(ValueError, match="not by multiply"):
        partial("multiply")


def test_every_end_of_every_rule_is_met(monkeypatch):
    """The programs are judged by numbers in `test_micro_batches`: there they run in micro-batches, or are refused."""
    reached = Reached(Path(state_rules.__file__).parent)
    for name in ("states_of", "reduced"):
        monkeypatch.setattr(batch_states, name, reached.watched(getattr(batch_states, name)))
    for case in CASES:
        analyse(step_of(case))
    for operation, _ in SITES.values():
        try:
            reached.watched(states_of)(operation)
        except UnsplitError:
            continue
    with pytest.raises(ValueError, match="reduce over micro-batches"):
        reached.watched(partial)("multiply")
    assert reached.missed_endings() == {}
