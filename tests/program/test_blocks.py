"""Blocks between candidate pipeline cuts, and what belongs to each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec

from automap_launch.program.analyse import analyse
from automap_launch.program.blocks import find_blocks
from automap_launch.program.flatten import flatten
from automap_launch.program.mlir import read_module
from automap_launch.program.ownership import Owners
from automap_launch.program.parts import Parts
from tests.program import models
from tests.program.conftest import make_step

F32 = jnp.float32
STREAM = models.LM["batch"] * models.LM["tokens"] * models.LM["model"] * 4  # bytes of the residual stream


def program_of(model):
    function, state, batch = model
    return analyse(make_step(function, state, *batch))


def totals(program):
    flops = {
        part: sum(op.flops * op.times for op in program.ops if op.part == part) for part in ("forward", "backward")
    }
    parameters = sum(program.values[program.arguments[k]].bytes for k in program.parameters)
    state = sum(
        program.values[program.arguments[k]].bytes
        for k, argument in enumerate(program.step.arguments)
        if argument.role == "state" and argument.shape
    )
    return flops["forward"], flops["backward"], parameters, state - parameters


MODELS = pytest.mark.parametrize(
    "model",
    [
        models.mlp((24, 64, 64, 64, 8)),
        models.language_model(2),
        models.language_model(3, scan=True),
        models.language_model(3, scan=True, remat=True),
        models.convolutional(),
    ],
    ids=["mlp", "lm", "scan", "scan_remat", "cnn"],
)


@MODELS
def test_blocks_hold_everything_once(model):
    program = program_of(model)
    forward, backward, parameters, state = totals(program)
    assert sum(b.flops for b in program.blocks) == pytest.approx(forward, rel=1e-3)
    assert sum(b.backward_flops for b in program.blocks) == pytest.approx(backward, rel=1e-3)
    assert sum(b.parameter_bytes for b in program.blocks) == pytest.approx(parameters, abs=8)
    assert sum(b.state_bytes for b in program.blocks) == pytest.approx(state, abs=8)
    ops = [k for block in program.blocks for k in block.ops]
    assert len(ops) == len(set(ops))


@MODELS
def test_homes_agree_with_the_blocks(model):
    program = program_of(model)
    flops = {part: [0.0] * len(program.blocks) for part in ("forward", "backward", "constant", "update")}
    for op, home in zip(program.ops, program.homes.ops, strict=True):
        assert sum(share for _, share in home) == pytest.approx(1)
        for b, share in home:
            flops[op.part][b] += share * op.flops * op.times
    assert flops["forward"] == pytest.approx([b.flops for b in program.blocks], rel=1e-3, abs=1)
    assert flops["backward"] == pytest.approx([b.backward_flops for b in program.blocks], rel=1e-3, abs=1)
    trained = set(program.parameters)
    parameters, state = [0.0] * len(program.blocks), [0.0] * len(program.blocks)
    for k, home in enumerate(program.homes.arguments):
        assert sum(share for _, share in home) == pytest.approx(1)
        if program.step.arguments[k].role == "state" and program.step.arguments[k].shape:
            for b, share in home:
                (parameters if k in trained else state)[b] += share * program.values[program.arguments[k]].bytes
    assert parameters == pytest.approx([b.parameter_bytes for b in program.blocks], abs=8)
    assert state == pytest.approx([b.state_bytes for b in program.blocks], abs=8)
    assert program.blocks[-1].boundary_bytes == 0


def test_unrolled_layers_are_cut_where_the_residual_stream_alone_crosses():
    blocks = program_of(models.language_model(4)).blocks
    assert len(blocks) >= 8
    assert {b.boundary_bytes for b in blocks[:7]} <= {STREAM, STREAM + 8 * 20 * 4}  # with a norm's statistic


def test_a_recomputed_layer_is_not_torn_apart():
    program = program_of(models.language_model(4, remat=True))
    assert [b.boundary_bytes for b in program.blocks[:4]] == [STREAM] * 4
    layer = program.blocks[1]
    assert layer.residual_bytes == STREAM
    assert layer.backward_flops == pytest.approx(3 * layer.flops, rel=0.15)


@pytest.mark.parametrize("remat", [False, True])
def test_scanned_layers_are_cut_between_iterations(remat):
    program = program_of(models.language_model(6, scan=True, remat=remat))
    ranges = [r for b in program.blocks for r in b.loops]
    assert [(first, last) for _, first, last in ranges] == [(k, k + 1) for k in range(6)]
    (loop,) = {loop for loop, _, _ in ranges}
    assert any(op.loop == loop and op.name == "dot_general" for op in program.ops)
    inner = program.blocks[2]
    assert inner.boundary_bytes == STREAM
    stacked = [k for k in program.parameters if program.step.arguments[k].shape[:1] == (6,)]
    assert sorted(inner.parameters) == stacked
    assert inner.parameter_bytes == sum(program.values[program.arguments[k]].bytes for k in stacked) // 6
    assert inner.state_bytes == 2 * inner.parameter_bytes
    assert inner.tied == ()
    assert inner.backward_flops == pytest.approx((3 if remat else 2) * inner.flops, rel=0.15)


def test_embedding_read_at_both_ends_is_tied_and_counted_once():
    program = program_of(models.language_model(2))
    embed = next(k for k in program.parameters if program.step.arguments[k].path.endswith("embed"))
    reading = [k for k, b in enumerate(program.blocks) if embed in b.parameters]
    assert reading[0] == 0
    assert len(reading) == 2
    assert all(embed in program.blocks[k].tied for k in reading)


def test_a_loop_over_time_is_not_cut():
    assert all(b.loops == () for b in program_of(models.recurrent()).blocks)


def test_no_more_blocks_than_allowed():
    function, state, batch = models.language_model(4)
    step = make_step(function, state, *batch)
    graph = flatten(read_module(step.modules["cpu"]), step.sources)
    program = analyse(step)
    parts = Parts([op.part for op in program.ops], program.parameters)
    owners = Owners(graph, step, parts)
    batch_arguments = [k for k, a in enumerate(step.arguments) if a.role == "batch"]
    for most in (1, 2, 3, 5):
        blocks, _ = find_blocks(graph, parts, owners, batch_arguments, most)
        assert 1 <= len(blocks) <= most
        flops = [b.flops for b in blocks]
        assert most == 1 or max(flops) < 3 * min(flops)


@pytest.mark.parametrize("most", [5, 9])
def test_joined_layers_of_a_loop_are_as_many_in_each_block(most):
    """Eight layers in few blocks: stages can be made with as many layers each."""
    program = analyse(make_step(*split_apart(models.language_model(8, scan=True))), max_blocks=most)
    widths = [stop - start for b in program.blocks for _, start, stop in b.loops]
    assert sum(widths) == 8
    assert len(set(widths)) == 1
    assert len(widths) == most - 1


def split_apart(model):
    function, state, batch = model
    return function, state, *batch


def test_encoder_output_crosses_every_cut_of_the_decoder():
    d, batch, length = 16, 4, 6

    def step(params, source, target):
        def loss(p):
            h = source
            for w in p["encoder"]:
                h = jnp.tanh(h @ w)
            x = target
            for w in p["decoder"]:
                x = jnp.tanh(x @ w["own"] + jax.nn.softmax(jnp.einsum("btd,bsd->bts", x, h)) @ h @ w["cross"])
            return jnp.mean(x**2)

        return jax.tree.map(lambda a, g: a - 0.1 * g, params, jax.grad(loss)(params))

    w = Spec((d, d), F32)
    params = {"encoder": [w] * 4, "decoder": [{"own": w, "cross": w}] * 4}
    x = Spec((batch, length, d), F32)
    blocks = analyse(make_step(step, (params,), x, x)).blocks
    one = batch * length * d * 4
    sizes = [b.boundary_bytes for b in blocks[:-1]]
    encoder = sizes.index(next(size for size in sizes if size > one))
    assert encoder >= 3
    assert set(sizes[:encoder]) == {one}
    assert sum(size >= 2 * one for size in sizes[encoder:]) >= 3
