"""How much is alive when."""

from __future__ import annotations

from automap_launch.plan.liveness import liveness_of
from automap_launch.plan.traffic import memory_traffic
from tests.plan.programs import BATCH, HIDDEN, IN, OUT, Builder, two_layers


def peak(program):
    live = liveness_of(program, memory_traffic(program))
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
    hidden = live.kinds.index(frozenset({0, 2}))
    # The hidden activation is alive with its own gradient; what it was before relu is not kept.
    assert live.activations[:, hidden].max() == 2 * 4 * BATCH * HIDDEN


def test_gradients_are_told_from_activations():
    live, _ = peak(two_layers())
    first, second = live.kinds.index(frozenset({1, 2})), live.kinds.index(frozenset({2, 3}))
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
