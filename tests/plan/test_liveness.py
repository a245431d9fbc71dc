"""How much is alive when."""

from __future__ import annotations

import numpy as np
import pytest

from automap_launch.plan.decision import STORAGES
from automap_launch.plan.liveness import Kind, liveness_of
from automap_launch.plan.platforms import rules_of
from automap_launch.plan.traffic import memory_traffic
from tests.plan.programs import BATCH, HIDDEN, IN, OUT, Builder, two_layers


def peak(program, platform="cpu"):
    live = liveness_of(program, memory_traffic(program), rules_of(platform))
    return live, (live.activations + live.gradients).sum(axis=1).max()


def test_a_value_lives_from_its_making_to_its_last_use():
    b = Builder()
    x, a, c, d = (b.value((1024,), (None,)) for _ in range(4))
    b.op("dot_general", (x,), (a,))
    b.op("dot_general", (a,), (c,))
    b.op("dot_general", (c,), (d,))
    b.result(d)
    assert peak(b.program())[1] == 2 * 4096  # never three at a time
    b.op("dot_general", (a, d), (b.value((), ()),))
    assert peak(b.program())[1] == 3 * 4096  # `a` is needed at the end


def test_forward_values_are_kept_for_the_backward_part():
    live, _ = peak(two_layers())
    hidden = live.kinds.index(Kind(frozenset({0, 2})))
    # The hidden activation is alive with its own gradient; what it was before relu is not kept.
    assert live.activations[:, hidden].max() == 2 * 4 * BATCH * HIDDEN


def test_gradients_are_told_from_activations():
    live, _ = peak(two_layers())
    first, second = (live.kinds.index(Kind(frozenset(k))) for k in ({1, 2}, {2, 3}))
    assert live.gradients[:, first].max() == 4 * IN * HIDDEN
    assert live.gradients[:, second].max() == 4 * HIDDEN * OUT
    assert live.activations[:, first].max() == 0


def test_results_take_a_donated_arguments_place():
    def step(donated):
        b = Builder()
        w = b.argument("w", (1024,), (None,), parameter=True, donated=donated)
        new = b.value((1024,), (None,))
        b.op("dot_general", (w, w), (new,))
        b.result(new, replaces=0)
        return peak(b.program())[1]

    assert step(donated=True) == 0
    assert step(donated=False) == 4096


def test_what_a_fused_chain_reads_is_alive_until_the_chain_runs():
    b = Builder()
    x, wide = b.value((1024,), (None,)), b.value((2048,), (None,))
    thin = [b.value((1024,), (None,)) for _ in range(3)]
    b.op("dot_general", (x,), (wide,))
    b.op("slice", (wide,), (thin[0],), fusable=True)
    b.op("dot_general", (x,), (thin[1],))
    b.op("add", (thin[0], thin[1]), (thin[2],), fusable=True)
    b.result(thin[2])
    assert peak(b.program())[1] == 4 * 4096  # the wide one is still there when the sum is made


def test_a_constant_chain_is_fused_into_whatever_uses_it():
    b = Builder()
    w = b.argument("params/w", (1024,), (None,), parameter=True)
    decay, new = b.value((1024,), (None,)), b.value((1024,), (None,))
    b.op("multiply", (w,), (decay,), fusable=True, part="constant")
    b.op("subtract", (w, decay), (new,), fusable=True, part="update")
    b.result(new, replaces=0)
    assert peak(b.program())[1] == 0


def test_new_state_is_kept_where_it_is_stored():
    b = Builder()
    w = b.argument("params/w", (1024,), (None,), parameter=True, donated=False)
    m = b.argument("momentum/w", (1024,), (None,), donated=False)
    new_w, new_m = b.value((1024,), (None,)), b.value((1024,), (None,))
    b.op("dot_general", (m,), (new_m,), part="update")
    b.op("dot_general", (w, new_m), (new_w,), part="update")
    b.result(new_w, replaces=0)
    b.result(new_m, replaces=1)
    live, _ = peak(b.program())
    assert {kind.stored_from for kind in live.kinds} == {STORAGES.index("optimizer"), STORAGES.index("state")}


def looped(builder, rounds=4):
    """A loop that stacks slices of gradients: (initial stack, stack as the body sees it, stack that it hands on)."""
    empty, carried, handed_on = (builder.value((rounds, 256), (None, None)) for _ in range(3))
    part = builder.value((1, 256), (None, None))
    builder.op("dot_general", (), (empty,), part="constant")
    builder.op("loop_carry", (empty,), (carried,), part="constant")
    builder.op("dot_general", (), (part,), times=rounds, part="update")
    builder.op("dynamic_update_slice", (carried, part), (handed_on,), times=rounds, part="update")
    return handed_on


def test_a_loop_stacks_in_place_and_keeps_the_stack_as_the_update_wants_it():
    b = Builder()
    stack = looped(b)
    b.op("dot_general", (stack,), (b.value((), ()),), part="update")
    live, most = peak(b.program())
    assert most == 4 * 1024 + 1024  # the stack once, and the slice that is written into it
    assert {kind.stored_from for kind in live.kinds} <= {STORAGES.index("optimizer"), len(STORAGES)}
    assert live.activations[:, live.kinds.index(Kind(frozenset(), STORAGES.index("optimizer")))].max() >= 4096


def test_what_a_loop_reads_from_outside_is_alive_until_its_last_round():
    b = Builder()
    outside, inside, large = b.value((1024,), (None,)), b.value((1024,), (None,)), b.value((4096,), (None,))
    b.op("dot_general", (), (outside,))
    b.op("dot_general", (outside,), (inside,), times=3)
    b.op("dot_general", (inside,), (large,), times=3)
    b.result(large)
    assert peak(b.program())[1] == 4 * (1024 + 1024 + 4096)


def test_the_gradient_of_a_pooling_needs_indices_where_the_platform_has_no_instruction_for_it():
    b = Builder()
    image, windows = (8, 8), (4, 4)
    x, g, out = b.value(image, (None, None)), b.value(windows, (None, None)), b.value(image, (None, None))
    b.op("dot_general", (), (x,))
    b.op("dot_general", (), (g,))
    b.op("select_and_scatter", (x, g), (out,), part="backward")
    b.result(out)
    plain = 4 * (64 + 16 + 64)
    assert peak(b.program(), "tpu")[1] == plain
    assert peak(b.program(), "cuda")[1] == plain + 4 * 2 * (64 + 16)


def test_gradients_that_the_update_sums_over_are_reduced_one_by_one():
    def liveness(update):
        b = Builder()
        batch, rows = b.group("batch"), b.group("parameter")
        x = b.argument("batch/x", (8, 64), (batch, rows), role="batch")
        for name, size in (("a", 256), ("b", 1024)):
            w = b.argument(f"params/{name}", (64, size), (rows, None), parameter=True)
            g, norm, new = b.value((64, size), (rows, None)), b.value((), ()), b.value((64, size), (rows, None))
            b.op("dot_general", (x, x), (g,), part="backward", contracted=((0, 0), (1, 0)))
            b.op(update, (g,), (norm,), part="update", contracted=((0, 0), (0, 1)) if update == "reduce" else ())
            b.op("subtract", (w, g, norm), (new,), part="update", fusable=True)
            b.result(new, replaces=len(b.arguments) - 1)
        return peak(b.program())[0]

    plain, summed = liveness("convert"), liveness("reduce")
    assert not plain.reduced_apart
    assert summed.reduced_apart
    halves = np.full((1, len(summed.kinds)), 0.5)
    assert plain.reduced_together(halves, 1e9).tolist() == [1e9]
    assert summed.reduced_together(halves, 1e9).tolist() == [0.5 * 4 * 64 * 1024]
    assert summed.reduced_together(halves, 100.0).tolist() == [100.0]


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_indices_of_a_pooling_are_kept_for_its_gradient_if_the_forward_part_has_what_they_are_made_of(part):
    b = Builder()
    x, g, out = b.value((8, 8), (None, None)), b.value((4, 4), (None, None)), b.value((8, 8), (None, None))
    b.op("pad", (), (x,), part=part)
    b.op("dot_general", (), (g,), part="backward")
    b.op("select_and_scatter", (x, g), (out,), part="backward")
    b.result(out)
    live, _ = peak(b.program())
    (indices,) = [birth for birth in live.births if birth.bytes == 4 * 2 * (64 + 16)]
    assert indices.residual == (part == "forward")
