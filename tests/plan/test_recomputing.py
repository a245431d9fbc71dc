"""What the backward part computes again in loops over layers, and that it is there all at once without the loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from automap_launch.plan.block_costs import HELD
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.recomputing import recomputed_in_loops
from automap_launch.program.batch_analysis import BatchAnalysis, Block, Homes
from tests.plan.programs import Builder, cluster

LAYERS, BATCH, WIDTH = 3, 64, 256
ACCUMULATED = Decision(1, 1, micro_batches=2)


def rematerialised():
    """A forward loop that keeps each layer's input, and a backward loop that computes the rest of the layer again."""
    b = Builder()
    batch, width = b.group("batch"), b.group("parameter")
    w = b.argument("params/w", (LAYERS, WIDTH, WIDTH), (None, width, None), parameter=True)
    x = b.argument("batch/x", (BATCH, WIDTH), (batch, width), role="batch")
    kept = b.value((LAYERS, BATCH, WIDTH), (None, batch, width))
    loss, seed, carried, handed_on = (b.value((BATCH, WIDTH), (batch, width)) for _ in range(4))
    zeros, sums, own, again, gradient = (b.value((BATCH, WIDTH), (batch, width)) for _ in range(5))
    b.op("dynamic_update_slice", (x, x), (kept,), times=LAYERS)
    b.op("dot_general", (x, w), (loss,))
    b.op("broadcast_in_dim", (), (zeros,), part="constant")
    b.op("negate", (loss,), (seed,), part="backward")
    b.op("loop_carry", (seed,), (carried,), part="backward")
    b.op("loop_carry", (zeros,), (sums,), part="backward")
    b.op("dynamic_slice", (kept, w), (own,), part="backward", times=LAYERS)
    b.op("dot_general", (own, w), (again,), part="backward", times=LAYERS)
    b.op("dot_general", (again, carried), (gradient,), part="backward", times=LAYERS)
    b.op("dot_general", (gradient, carried), (handed_on,), part="backward", times=LAYERS)
    b.result(handed_on)
    program = b.program()
    blocks = tuple(Block((), ((0, k, k + 1),), 1, 1, (0,), 0, 0, 0, 0) for k in range(LAYERS))
    shares = tuple((k, 1 / LAYERS) for k in range(LAYERS))
    homes = Homes((shares,) * len(program.ops), (shares,) * len(program.arguments))
    analysis = BatchAnalysis({}, (), max_micro_batches=BATCH)
    return replace(program, batch_analysis=analysis, blocks=blocks, homes=homes)


def test_what_waits_for_no_gradient_is_recomputed():
    program = rematerialised()
    found = recomputed_in_loops(program)
    assert sorted(found) == [6, 7]
    assert recomputed_in_loops(replace(program, ops=program.ops[:5])) == frozenset()


def test_all_layers_are_there_at_once_where_what_can_run_early_does():
    layer = 4 * BATCH * WIDTH / 2
    for platform, recomputed in (("cpu", 2 * layer), ("cuda", 0.0)):
        model = CostModel(rematerialised(), cluster(platform=platform))
        costs = model.block_costs(ACCUMULATED)
        assert costs.recomputed.tolist() == [recomputed] * LAYERS
        whole, one = (costs.runs(np.array([0]), np.array([end])).working[0] for end in (LAYERS, 1))
        assert whole - one == (LAYERS - 1) * recomputed


def test_a_step_that_accumulates_takes_all_slices_of_stacked_parameters_once():
    model = CostModel(rematerialised(), cluster())
    plain, shared = (model.block_costs(decision) for decision in (ACCUMULATED, replace(ACCUMULATED, data=2)))
    batch = 4 * BATCH * WIDTH / LAYERS
    assert np.allclose(plain.held[:, HELD.index("other")], batch + 4 * WIDTH * WIDTH)
    assert np.allclose(shared.held[:, HELD.index("other")], batch / 2 + 4 * WIDTH * WIDTH)
    pipeline = model.block_costs(replace(ACCUMULATED, cuts=(1,), schedule="1f1b"))
    assert np.allclose(pipeline.held[:, HELD.index("other")], batch)
