"""The cost model on a program put together by hand, where every number can be worked out."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from automap_launch.cluster import collectives
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import STORAGES, Decision
from tests.plan.programs import BATCH, HIDDEN, IN, OUT, Builder, cluster, two_layers

HIDDEN_GROUP = frozenset({2})
WEIGHTS = 4 * (IN * HIDDEN + HIDDEN * OUT)


def one_dot(flops=10**9, size=(64, 64), **op):
    b = Builder()
    batch = b.group("batch")
    x = b.argument("x", size, (batch, None), role="batch")
    y = b.value(size, (batch, None))
    b.op("dot_general", (x,), (y,), flops=flops, **op)
    b.result(y)
    return b.program()


def test_roofline_takes_the_slower_of_work_and_memory():
    memory_bound = one_dot(flops=1, size=(64, 10**6))
    assert CostModel(memory_bound, cluster()).estimate(Decision(1, 1)).compute == pytest.approx(2 * 4 * 64e6 / 1e11)
    assert CostModel(one_dot(), cluster()).estimate(Decision(1, 1)).compute == pytest.approx(1e-3)
    assert CostModel(one_dot(), cluster()).estimate(Decision(4, 1)).compute == pytest.approx(0.25e-3)


def test_loops_count_their_rounds():
    once, often = (CostModel(one_dot(times=n), cluster()).estimate(Decision(8, 1)).compute for n in (1, 24))
    assert often == pytest.approx(24 * once)


def test_the_peak_is_that_of_the_dtype():
    b = Builder()
    x, y = b.value((8,), (None,), "bfloat16"), b.value((8,), (None,), "bfloat16")
    b.op("dot_general", (x,), (y,), flops=10**9)
    b.result(y)
    assert CostModel(b.program(), cluster()).estimate(Decision(1, 1)).compute == pytest.approx(0.5e-3)


def test_curves_charge_each_operation_and_speed_a_lone_device_up():
    plain = CostModel(one_dot(), cluster()).estimate(Decision(8, 1)).compute
    slow = CostModel(one_dot(), cluster(op_seconds=1e-3)).estimate(Decision(8, 1)).compute
    assert slow == pytest.approx(plain + 1e-3)
    shared = CostModel(one_dot(), cluster(alone_speedup=3.0))
    assert shared.estimate(Decision(8, 1)).compute == pytest.approx(plain)
    assert shared.estimate(Decision(1, 1)).compute == pytest.approx(8 * plain / 3)
    assert shared.estimate(Decision(4, 1)).compute == pytest.approx(2 * plain / 2)  # half of them are busy


def test_data_parallelism_reduces_all_gradients_in_one_go():
    model = CostModel(two_layers(), cluster())
    decision = Decision(8, 1)
    (use,) = model.breakdown(decision).collectives
    assert (use.kind, use.axis, use.bytes, use.count) == ("all_reduce", "data", WEIGHTS, 2)
    link = cluster().link("host")
    assert use.seconds == pytest.approx(collectives.all_reduce(WEIGHTS, 8, link))
    assert model.estimate(decision).communication == use.seconds


def test_a_gpu_joins_gradients_into_buckets_only():
    big = replace(two_layers(), ops=tuple(replace(op, times=600) for op in two_layers().ops))
    model = CostModel(big, cluster(platform="cuda"))
    (use,) = model.breakdown(Decision(8, 1)).collectives
    buckets = -(-600 * WEIGHTS // (30 * 2**20))
    assert buckets > 1
    link = cluster().link("host")
    alphas = buckets * collectives.all_reduce(0, 8, link)
    assert use.seconds == pytest.approx(alphas + collectives.all_reduce(600 * WEIGHTS, 8, link) - 14e-6)


def test_tensor_parallelism_reduces_activations_one_by_one():
    model = CostModel(two_layers(), cluster())
    (use,) = model.breakdown(Decision(1, 8, HIDDEN_GROUP)).collectives
    assert (use.kind, use.axis, use.count, use.bytes) == ("all_reduce", "model", 1, 4 * BATCH * OUT)


def test_an_axis_pays_for_the_link_that_it_crosses():
    program = two_layers()
    near, far = (CostModel(program, cluster(hosts, 16 // hosts)) for hosts in (1, 2))
    inside = Decision(2, 8, HIDDEN_GROUP)
    assert far.breakdown(inside).compute == near.breakdown(inside).compute
    near_uses = {use.axis: use.seconds for use in near.breakdown(inside).collectives}
    far_uses = {use.axis: use.seconds for use in far.breakdown(inside).collectives}
    assert far_uses["model"] == near_uses["model"]
    assert far_uses["data"] > 5 * near_uses["data"]


def test_memory_is_split_as_the_plan_splits_the_state():
    model = CostModel(two_layers(), cluster())
    state = WEIGHTS
    plain = model.estimate(Decision(8, 1)).memory
    assert (plain.parameters, plain.optimizer) == (state, state)
    tensor = model.estimate(Decision(4, 2, HIDDEN_GROUP)).memory
    assert (tensor.parameters, tensor.optimizer) == (state // 2, state // 2)
    optimizer = model.estimate(Decision(8, 1, storage="optimizer")).memory
    assert (optimizer.parameters, optimizer.optimizer) == (state, state // 8)
    everything = model.estimate(Decision(8, 1, storage="state")).memory
    assert (everything.parameters, everything.optimizer) == (state // 8, state // 8)
    # The gathered parameters are counted where they are: beside the activations.
    assert everything.activations == optimizer.activations + state
    assert plain.total == plain.parameters + plain.optimizer + plain.gradients + plain.activations


def test_zero_gathers_parameters_once_a_step():
    model = CostModel(two_layers(), cluster())
    for storage in ("optimizer", "state"):
        uses = {use.kind: use.bytes for use in model.breakdown(Decision(8, 1, storage=storage)).collectives}
        assert uses == {"all_reduce": WEIGHTS, "all_gather": WEIGHTS}
    gpu = CostModel(two_layers(), cluster(platform="cuda"))
    uses = {use.kind: use.bytes for use in gpu.breakdown(Decision(8, 1, storage="state")).collectives}
    assert uses == {"reduce_scatter": WEIGHTS, "all_gather": WEIGHTS}


@pytest.mark.parametrize(("shape", "copies"), [((3, 64), 2), ((64, 3), 1)])
def test_what_a_loop_reads_of_gathered_parameters_is_there_twice_unless_the_loop_walks_the_gathered_dim(shape, copies):
    def activations(times):
        b = Builder()
        batch = b.group("batch")
        b.argument("batch/x", (8, 64), (batch, None), role="batch")
        w = b.argument("params/w", shape, (None, None), parameter=True)
        b.op("dynamic_slice", (w,), (b.value((1, shape[1]), (None, None)),), times=times)
        return CostModel(b.program(), cluster()).estimate(Decision(8, 1, storage="state")).memory.activations

    assert activations(3) - activations(1) == (copies - 1) * 4 * 3 * 64


def test_a_plan_fits_when_its_share_of_memory_holds_it():
    program = two_layers()
    needed = CostModel(program, cluster()).estimate(Decision(8, 1)).memory.total
    assert CostModel(program, cluster(memory=2 * needed), memory_fraction=0.51).estimate(Decision(8, 1)).fits
    assert not CostModel(program, cluster(memory=2 * needed), memory_fraction=0.49).estimate(Decision(8, 1)).fits


def every_decision(program):
    for data, model in ((8, 1), (4, 2), (2, 4), (1, 8)):
        for count in range(4):
            for sharded in itertools.combinations((1, 2, 3), count):
                for storage in STORAGES:
                    yield Decision(data, model, frozenset(sharded), storage)


def test_many_at_once_are_what_each_is_alone():
    program = two_layers()
    decisions = list(every_decision(program))
    together = CostModel(program, cluster()).estimate_many(decisions)
    for decision, estimate in zip(decisions, together, strict=True):
        assert CostModel(program, cluster()).estimate(decision) == estimate
    assert len({estimate.step_seconds for estimate in together}) > 20


def test_refuses_impossible_decisions_also_after_possible_ones_on_the_same_mesh():
    model = CostModel(two_layers(), cluster())
    model.estimate(Decision(1, 8, HIDDEN_GROUP))
    with pytest.raises(ValueError, match="there is no group 7"):
        model.estimate(Decision(1, 8, frozenset({7})))
    with pytest.raises(ValueError, match="data=3 does not divide the batch"):
        model.estimate(Decision(3, 1))
    with pytest.raises(ValueError, match="needs 16 devices"):
        model.estimate(Decision(16, 1))


def test_an_operation_that_touches_very_many_groups_still_pays_its_traffic():
    b = Builder()
    groups = [b.group("parameter") for _ in range(20)]
    values = [b.argument(f"w{g}", (64,), (g,), parameter=True) for g in groups]
    outs = [b.value((64,), (g,)) for g in groups]
    b.op("custom_call", values, outs, flops=10**6)
    for out in outs:
        b.result(out)
    model = CostModel(b.program(), cluster())
    whole = model.estimate(Decision(1, 1)).compute
    assert whole >= 2 * 20 * 64 * 4 / 1e11
    assert model.estimate(Decision(1, 8, frozenset(groups))).compute < whole


def deep(layers):
    """`x = relu(x @ w)` layer by layer, weights of their own: 2 operations a layer."""
    b = Builder()
    batch, even, odd = b.group("batch"), b.group("parameter"), b.group("parameter")
    x = b.argument("x", (64, 64), (batch, even), role="batch")
    for layer in range(layers):
        before, after = (even, odd) if layer % 2 == 0 else (odd, even)
        w = b.argument(f"w{layer}", (64, 64), (before, after), parameter=True)
        y, z = b.value((64, 64), (batch, after)), b.value((64, 64), (batch, after))
        b.op("dot_general", (x, w), (y,), flops=2 * 64**3, contracted=((0, 1), (1, 0)))
        b.op("maximum", (y,), (z,), fusable=True)
        x = z
    b.result(x)
    return b.program()


def test_thousands_of_plans_a_second_whatever_the_programs_length():
    program = deep(15_000)
    assert len(program.ops) == 30_000
    model = CostModel(program, cluster())
    sharded = [frozenset(s) for s in ((), (1,), (2,), (1, 2))]
    decisions = [Decision(8 // m, m, s, z) for m in (1, 2, 4, 8) for s in sharded for z in STORAGES]
    started = time.perf_counter()
    for _ in range(20):
        model.estimate_many(decisions)
    assert 20 * len(decisions) / (time.perf_counter() - started) > 1000


@pytest.mark.parametrize(("name", "times"), [("dot_general", 1), ("convolution", 2)])
def test_a_product_reads_what_was_gathered_before_and_a_convolution_gathers_again(name, times):
    b = Builder()
    batch, inner, outer = b.group("batch"), b.group("parameter"), b.group("parameter")
    x = b.argument("batch/x", (BATCH, IN), (batch, inner), role="batch")
    for number in range(2):
        w = b.argument(f"params/{number}", (IN, HIDDEN), (None, outer), parameter=True)
        y = b.value((BATCH, HIDDEN), (batch, outer))
        b.op(name, (x, w), (y,), flops=2 * BATCH * IN * HIDDEN, contracted=((0, 1), (1, 0)))
        b.result(y)
    model = CostModel(b.program(), cluster())
    (gather,) = model.breakdown(Decision(1, 8, frozenset({inner, outer}))).collectives
    assert (gather.kind, gather.bytes) == ("all_gather", times * 4 * BATCH * IN)
