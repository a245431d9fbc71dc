"""Forward, backward, update and constant, and which state counts as parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec

from automap_launch.program.analyse import analyse
from tests.program import models
from tests.program.conftest import make_step

F32 = jnp.float32
PARAMS = {"w1": Spec((24, 48), F32), "w2": Spec((48, 6), F32)}
X, Y = Spec((16, 24), F32), Spec((16, 6), F32)


def sgd(params, gradient):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def dots(program):
    return [op.part for op in program.ops if op.name == "dot_general"]


def paths(program):
    return {program.step.arguments[k].path for k in program.parameters}


@pytest.mark.parametrize("scan", [False, True])
def test_backward_has_twice_the_dots_of_forward(scan):
    function, state, batch = models.language_model(2, scan=scan)
    program = analyse(make_step(function, state, *batch))
    flops = {part: sum(o.flops * o.times for o in program.ops if o.part == part) for part in ("forward", "backward")}
    assert flops["backward"] == pytest.approx(2 * flops["forward"], rel=0.1)
    assert set(dots(program)) == {"forward", "backward"}


def test_recomputed_layers_are_backward():
    dot = {
        remat: [
            op.part
            for op in analyse(make_step(f, s, *b)).ops
            if op.name == "dot_general"
        ]
        for remat, (f, s, b) in ((r, models.language_model(2, remat=r)) for r in (False, True))
    }  # fmt: skip
    assert dot[True].count("forward") == dot[False].count("forward")
    assert dot[True].count("backward") > dot[False].count("backward")


def test_update_has_no_batch_dim_and_all_of_adam():
    function, state, batch = models.mlp()
    program = analyse(make_step(function, state, *batch))
    update = [op for op in program.ops if op.part == "update"]
    for op in update:
        assert all(program.batch not in program.dim_groups[v] for v in (*op.operands, *op.results))
    weights = sum(len(a.path.split("/")) == 3 and a.path.startswith("0/") for a in program.step.arguments)
    assert sum(op.name == "sqrt" for op in update) == weights


def test_step_counter_is_constant():
    def step(params, count, x, y):
        gradient = jax.grad(lambda p: jnp.mean((jax.nn.relu(x @ p["w1"]) @ p["w2"] - y) ** 2))(params)
        return sgd(params, gradient), jnp.cos(count + 1.0)

    program = analyse(make_step(step, (PARAMS, Spec((), F32)), X, Y))
    assert [op.part for op in program.ops if op.name == "cosine"] == ["constant"]


def test_parameters_are_what_the_forward_part_reads():
    def step(state, x, y):
        params, average, momentum, rate = state

        def loss(p):
            p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
            return jnp.mean((jax.nn.relu(x.astype(jnp.bfloat16) @ p["w1"]) @ p["w2"].T.T - y) ** 2)

        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(params))
        params = jax.tree.map(lambda p, m: p - rate * m, params, momentum)
        return (params, jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params), momentum, rate * 0.99)

    program = analyse(make_step(step, ((PARAMS, PARAMS, PARAMS, Spec((), F32)),), X, Y))
    assert paths(program) == {"0/0/w1", "0/0/w2"}


def test_parameters_read_within_a_loop_over_steps_are_found():
    def epoch(params, xs, ys):
        def one(params, xy):
            x, y = xy
            value, gradient = jax.value_and_grad(lambda p: jnp.mean((jax.nn.relu(x @ p["w1"]) @ p["w2"] - y) ** 2))(
                params
            )
            return sgd(params, gradient), value

        return jax.lax.scan(one, params, (xs, ys))

    program = analyse(make_step(epoch, (PARAMS,), Spec((5, 16, 24), F32), Spec((5, 16, 6), F32)))
    assert paths(program) == {"0/w1", "0/w2"}
    assert dots(program) == ["forward", "forward", "backward", "backward", "backward"]
    assert any(op.part == "update" and op.name == "subtract" for op in program.ops)


def test_batch_statistics_are_forward_and_running_ones_are_no_parameters():
    def step(params, running, x, y):
        def loss(p):
            h = x @ p["w1"]
            mean = jnp.mean(h, 0)
            h = jax.nn.relu((h - mean) * jax.lax.rsqrt(jnp.var(h, 0) + 1e-5))
            return jnp.mean((h @ p["w2"] - y) ** 2), mean

        gradient, mean = jax.grad(loss, has_aux=True)(params)
        return sgd(params, gradient), 0.9 * running + 0.1 * mean

    program = analyse(make_step(step, (PARAMS, Spec((48,), F32)), X, Y))
    assert paths(program) == {"0/w1", "0/w2"}
    assert [op.part for op in program.ops if op.name == "rsqrt"] == ["forward"]
    assert dots(program) == ["forward", "forward", "backward", "backward", "backward"]


def test_a_statistic_that_makes_a_gradient_is_no_gradient():
    """The gradient of batch norm's scale is a sum over the batch times the inverse deviation of the forward part."""

    def normalise(h, scale):
        centred = h - h.mean(0)
        return centred * (jax.lax.rsqrt((centred**2).mean(0) + 1e-5) * scale)

    def step(state, x, y):
        def loss(params):
            h = x
            for w, scale in params["layers"]:
                h = jax.nn.relu(normalise(h @ w, scale))
            return ((h @ params["out"] - y) ** 2).mean()

        return sgd(state, jax.grad(loss)(state))

    layers = [(Spec((24, 24), F32), Spec((24,), F32)) for _ in range(3)]
    program = analyse(make_step(step, ({"layers": layers, "out": Spec((24, 6), F32)},), X, Y))
    assert dots(program).count("forward") == 4
    assert dots(program).count("backward") == 7  # the first layer's input has no gradient


def test_two_towers_with_their_own_losses_are_split_each():
    def step(params, x, y):
        def loss(p):
            return sum(jnp.mean((jax.nn.relu(x @ t["w1"]) @ t["w2"] - y) ** 2) for t in p)

        return sgd(params, jax.grad(loss)(params))

    program = analyse(make_step(step, ([PARAMS, PARAMS],), X, Y))
    assert sorted(dots(program)) == ["backward"] * 6 + ["forward"] * 4


def test_accumulated_gradients_are_summed_in_the_update():
    def step(params, x, y):
        def one(total, xy):
            gradient = jax.grad(lambda p: jnp.mean((jax.nn.relu(xy[0] @ p["w1"]) @ p["w2"] - xy[1]) ** 2))(params)
            return jax.tree.map(jnp.add, total, gradient), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return sgd(params, jax.lax.scan(one, zeros, (x.reshape(4, 4, 24), y.reshape(4, 4, 6)))[0])

    program = analyse(make_step(step, (PARAMS,), X, Y))
    assert dots(program) == ["forward", "forward", "backward", "backward", "backward"]
    shapes = [program.values[op.results[0]].shape for op in program.ops if op.name == "add" and op.part == "update"]
    assert {(24, 48), (48, 6)} <= set(shapes)


def test_the_backward_half_of_a_loop_that_nothing_comes_before():
    """The first layer's input is the batch: of the last round of the backward loop no gradient goes on."""

    def step(params, x, y):
        def loss(p):
            h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p["layers"])
            return ((h @ p["head"] - y) ** 2).mean()

        return sgd(params, jax.grad(loss)(params))

    params = {"layers": Spec((3, 24, 24), F32), "head": Spec((24, 6), F32)}
    program = analyse(make_step(step, (params,), X, Y))
    (forward,) = {op.loop for op in program.ops if op.loop is not None and op.name == "tanh"}
    assert [
        (op.part, op.loop == forward) for op in program.ops if op.name == "dot_general" and op.loop is not None
    ] == [
        ("forward", True),
        ("backward", False),
        ("backward", False),
    ]
    assert sum(bool(block.loops) for block in program.blocks) == 3
