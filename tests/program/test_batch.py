"""Which dim is the batch, when the step says so in other ways than by a leading dim."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Spec
from jax import lax

from automap_launch.program.analyse import analyse
from tests.program.conftest import make_step

F32, I32 = jnp.float32, jnp.int32
PARAMS = {"w1": Spec((24, 48), F32), "w2": Spec((48, 6), F32)}


def loss(params, x, y):
    return jnp.mean((jax.nn.relu(x @ params["w1"]) @ params["w2"] - y) ** 2)


def sgd(params, gradient):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def step(params, x, y):
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    return sgd(params, gradient), value


def batch_dims(program):
    """For each batch argument, the dims that are the batch."""
    return [
        [k for k, item in enumerate(program.dim_groups[value]) if item is not None and item == program.batch]
        for argument, value in zip(program.step.arguments, program.arguments, strict=True)
        if argument.role == "batch"
    ]


def test_leading_dim_of_all_batch_arguments():
    program = analyse(make_step(step, (PARAMS,), Spec((16, 24), F32), Spec((16, 6), F32)))
    assert batch_dims(program) == [[0], [0]]
    assert program.groups[program.batch].sizes == (16,)


def test_most_arguments_decide_then_their_elements():
    def attend(w, tokens, positions, mask):
        h = w[tokens] + w[positions]
        scores = jnp.einsum("btd,bsd->bts", h, h) + mask
        return w * 2, jnp.mean(jax.nn.softmax(scores, -1) ** 2)

    arguments = (Spec((8, 20), I32), Spec((20,), I32), Spec((20, 20), F32))
    program = analyse(make_step(attend, (Spec((32, 6), F32),), *arguments))
    assert batch_dims(program) == [[0], [], []]


def test_several_steps_scanned_in_one():
    def epoch(params, xs, ys):
        return lax.scan(lambda params, xy: step(params, *xy), params, (xs, ys))

    program = analyse(make_step(epoch, (PARAMS,), Spec((5, 16, 24), F32), Spec((5, 16, 6), F32)))
    assert batch_dims(program) == [[1], [1]]
    assert program.dim_groups[program.arguments[2]][0] is None


def test_micro_batches_cut_from_the_batch_belong_to_it():
    def accumulate(params, x, y):
        def one(total, xy):
            value, gradient = jax.value_and_grad(loss)(params, *xy)
            return jax.tree.map(jnp.add, total, gradient), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, values = lax.scan(one, zeros, (x.reshape(4, -1, 24), y.reshape(4, -1, 6)))
        return sgd(params, total), values.mean()

    program = analyse(make_step(accumulate, (PARAMS,), Spec((32, 24), F32), Spec((32, 6), F32)))
    assert batch_dims(program) == [[0], [0]]
    group = program.groups[program.batch]
    assert group.sizes == (8, 32)
    assert group.divisor == 8
    cuts = [op for op in program.ops if op.name == "reshape" and (op.operands[0] in program.arguments) and op.whole]
    assert len(cuts) == 2, "cutting the sharded batch into micro-batches moves data"


def test_batch_picked_from_a_whole_data_set_by_slice():
    def pick(params, data, i):
        rows = lax.dynamic_slice(data, (i * 16, 0), (16, 30))
        return step(params, rows[:, :24], rows[:, 24:])

    program = analyse(make_step(pick, (PARAMS,), Spec((80, 30), F32), other=(Spec((), I32),)))
    assert program.groups[program.batch].sizes == (16,)
    assert batch_dims(program) == [[]]


def test_batch_picked_from_a_whole_data_set_by_permutation():
    def epoch(params, data, order):
        def one(i, params):
            rows = data[lax.dynamic_slice(order, (i * 16,), (16,))]
            return step(params, rows[:, :24], rows[:, 24:])[0]

        return lax.fori_loop(0, 5, one, params)

    program = analyse(make_step(epoch, (PARAMS,), Spec((80, 30), F32), Spec((80,), I32)))
    assert program.groups[program.batch].sizes == (16,)


def test_batch_of_one_is_no_batch():
    program = analyse(make_step(step, (PARAMS,), Spec((1, 24), F32), Spec((1, 6), F32)))
    assert program.batch is None
    assert any("leading dims have size 1" in note for note in program.notes)


def test_examples_taken_one_by_one_are_no_batch():
    def one_by_one(params, x, y):
        gradients = lax.map(lambda xy: jax.grad(loss)(params, *xy), (x, y))
        return sgd(params, jax.tree.map(lambda g: g.mean(0), gradients))

    program = analyse(make_step(one_by_one, (PARAMS,), Spec((16, 24), F32), Spec((16, 6), F32)))
    assert program.batch is None
    assert any("a loop takes its examples one by one" in note for note in program.notes)


def test_per_example_gradients_keep_the_batch():
    def per_example(params, x, y):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        return sgd(params, jax.tree.map(lambda g: jnp.clip(g, -1, 1).mean(0), gradients))

    program = analyse(make_step(per_example, (PARAMS,), Spec((16, 24), F32), Spec((16, 6), F32)))
    assert batch_dims(program) == [[0], [0]]


def test_step_without_batch_arguments_has_none():
    program = analyse(make_step(lambda params: step(params, jnp.ones((16, 24)), jnp.ones((16, 6))), (PARAMS,)))
    assert program.batch is None
    assert any("no batch argument" in note for note in program.notes)
    assert [program.step.arguments[k].path for k in program.parameters] == ["0/w1", "0/w2"]
