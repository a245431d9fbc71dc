"""Shardings of arguments and results."""

from __future__ import annotations

from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from tests.plan.programs import Builder, two_layers

NAMES = ("w1", "w2", "m1", "m2", "x")


def by_name(specs):
    return dict(zip(NAMES, specs, strict=True))


def test_arguments_are_sharded_as_their_groups_are():
    layout = derive_layout(two_layers(), Decision(4, 2, frozenset({2})))
    assert layout.mesh == {"data": 4, "model": 2}
    assert by_name(layout.compute) == {
        "w1": (None, "model"),
        "w2": ("model", None),
        "m1": (None, "model"),
        "m2": ("model", None),
        "x": ("data", None),
    }
    assert layout.storage == layout.compute
    # New weights and momenta leave as they came: the results are w1, m1, w2, m2.
    assert layout.results == tuple(layout.storage[i] for i in (0, 2, 1, 3))


def test_two_groups_that_meet_in_a_tensor_cut_it_once():
    layout = derive_layout(two_layers(), Decision(1, 2, frozenset({1, 2})))
    assert by_name(layout.compute)["w1"] == ("model", None)
    assert by_name(layout.compute)["w2"] == ("model", None)


def test_storage_of_the_optimizer():
    layout = derive_layout(two_layers(), Decision(4, 2, frozenset({2}), "optimizer"))
    assert by_name(layout.storage) == {
        "w1": (None, "model"),
        "w2": ("model", None),
        "m1": ("data", "model"),
        "m2": ("model", "data"),
        "x": ("data", None),
    }
    # The update works on the optimizer's shards as they are: nothing is gathered at the entry.
    assert by_name(layout.compute)["m1"] == ("data", "model")
    assert layout.results[1] == ("data", "model")


def test_storage_of_all_state_keeps_what_the_forward_part_computes_with():
    layout = derive_layout(two_layers(), Decision(8, 1, storage="state"))
    assert by_name(layout.storage)["w1"] == ("data", None)
    assert by_name(layout.compute)["w1"] == (None, None)
    assert layout.results[0] == ("data", None)


def test_small_results_are_replicated_and_large_ones_are_not():
    b = Builder()
    batch = b.group("batch")
    x = b.argument("x", (2**19,), (batch,), role="batch")
    small, large = b.value((1024,), (batch,)), b.value((2**19,), (batch,))
    b.op("slice", (x,), (small,))
    b.op("negate", (x,), (large,))
    b.result(small)
    b.result(large)
    assert derive_layout(b.program(), Decision(8, 1)).results == ((None,), ("data",))


def test_a_typed_key_is_a_scalar_to_jax():
    b = Builder()
    words = b.argument("key", (2,), (None,), role="other", dtype="uint32")
    b.result(words)
    program = b.program()
    argument = program.step.arguments[0]
    object.__setattr__(argument, "shape", ())
    assert derive_layout(program, Decision(1, 1)).compute == ((),)
