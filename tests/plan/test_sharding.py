"""Which dims get which axis."""

from __future__ import annotations

import pytest

from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.sharding import axes_of, spec_of, storage_spec, why_invalid
from tests.plan.programs import Builder, cluster, two_layers

MESH = {"data": 4, "model": 2}


def test_an_axis_shards_a_tensor_once_and_only_where_it_divides():
    axes = {0: "data", 1: "model", 2: "model"}
    assert spec_of((0, 1), (8, 6), axes, MESH) == ("data", "model")
    assert spec_of((1, 1), (6, 6), axes, MESH) == ("model", None)
    assert spec_of((2, 1), (8, 6), axes, MESH) == (None, "model")  # the larger group comes first
    assert spec_of((2, 1), (5, 6), axes, MESH) == (None, "model")
    assert spec_of((None, 3), (8, 8), axes, MESH) == (None, None)


def test_axes_of_one_device_shard_nothing():
    program = two_layers()
    assert axes_of(program, Decision(8, 1, frozenset({2}))) == {0: "data"}
    assert axes_of(program, Decision(1, 8, frozenset({2}))) == {2: "model"}


def test_a_group_that_no_argument_carries_is_sharded_nowhere():
    b = Builder()
    batch, stream, hidden, scores = (b.group(k) for k in ("batch", "parameter", "parameter", "activation"))
    b.argument("params/w", (16, 32), (stream, hidden), parameter=True)
    b.argument("batch/x", (64, 16), (batch, stream), role="batch")
    b.value((64, 8), (batch, scores))
    program = b.program()
    assert axes_of(program, Decision(4, 2, frozenset({hidden}))) == {batch: "data", hidden: "model"}
    assert axes_of(program, Decision(4, 2, frozenset({stream, hidden}))) == {batch: "data", stream: "model"}
    assert why_invalid(program, Decision(4, 2, frozenset({scores}))).startswith("group 3 has no dim in any argument")
    b.argument("params/bias", (32,), (hidden,), parameter=True)
    both = frozenset({stream, hidden})
    assert axes_of(b.program(), Decision(4, 2, both)) == {batch: "data", stream: "model", hidden: "model"}


def test_the_cost_sees_what_the_arguments_carry():
    program = two_layers()  # w1 (1, 2), w2 (2, 3): 2 goes before 3 and after 1
    model = CostModel(program, cluster())
    one, both = Decision(4, 2, frozenset({1})), Decision(4, 2, frozenset({1, 2}))
    assert model.estimate(Decision(4, 2, frozenset({2, 3}))) == model.estimate(Decision(4, 2, frozenset({2})))
    assert model.estimate(both) != model.estimate(one)


def test_storage_adds_the_data_axis_to_the_first_free_dim_that_it_divides():
    assert storage_spec((None, "model"), (8, 6), MESH) == ("data", "model")
    assert storage_spec(("model", None), (8, 8), MESH) == ("model", "data")
    assert storage_spec((None, None), (6, 8), MESH) == (None, "data")
    assert storage_spec((None,), (6,), MESH) == (None,)
    assert storage_spec(("data", None), (8, 8), MESH) == ("data", None)
    assert storage_spec((None,), (8,), {"data": 1, "model": 2}) == (None,)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (Decision(8, 1), None),
        (Decision(3, 1), r"data=3 does not divide the batch \(size 64\)"),
        (Decision(1, 3, frozenset({2})), r"model=3 does not divide group 2 \(size 256\)"),
        (Decision(1, 2, frozenset({9})), "there is no group 9: the step has the groups 0 to 3"),
        (Decision(1, 2, frozenset({0})), "group 0 is the batch"),
    ],
)
def test_says_why_a_decision_is_impossible(decision, reason):
    found = why_invalid(two_layers(), decision)
    if reason is None:
        assert found is None
    else:
        with pytest.raises(ValueError, match=reason):
            raise ValueError(found)


def test_a_step_without_a_batch_has_no_data_axis():
    b = Builder()
    b.group("parameter")
    b.argument("w", (8,), (0,))
    assert why_invalid(b.program(), Decision(2, 1)) == "data=2 shards the batch, and the step has no batch"


def test_a_group_that_only_optimizer_state_could_carry_is_sharded_nowhere():
    """A weight [d, f] sharded along d, and a factored second moment [f]: XLA does not shard f of the activations."""
    b = Builder()
    batch, stream, inner = (b.group(k) for k in ("batch", "parameter", "parameter"))
    b.argument("params/w", (64, 32), (stream, inner), parameter=True)
    b.argument("optimizer/columns", (32,), (inner,))
    x = b.argument("batch/x", (8, 64), (batch, stream), role="batch")
    b.result(x)
    program = b.program()
    both = Decision(1, 4, frozenset({stream, inner}))
    assert axes_of(program, both) == {stream: "model"}
    assert axes_of(program, Decision(1, 4, frozenset({inner}))) == {inner: "model"}
