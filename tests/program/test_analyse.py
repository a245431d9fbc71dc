"""Groups, parts and batch of whole small steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Spec

from automap_launch.program.analyse import analyse
from automap_launch.program.program import Group, Program

F32, I32 = jnp.float32, jnp.int32


def sgd(loss):
    """A step from a loss: (params, *batch) -> (new params, loss)."""

    def step(params, *batch):
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    return step


def group_of(program: Program, path: str, dim: int) -> Group | None:
    index = next(k for k, a in enumerate(program.step.arguments) if a.path == path)
    number = program.dim_groups[program.arguments[index]][dim]
    return None if number is None else program.groups[number]


def mlp_loss(params, x, y):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


MLP = {"w1": Spec((24, 48), F32), "b1": Spec((48,), F32), "w2": Spec((48, 12), F32)}


def test_mlp_has_the_groups_batch_input_hidden_and_output(build_step):
    step = build_step(sgd(mlp_loss), (MLP,), Spec((16, 24), F32), Spec((16, 12), F32))
    program = analyse(step)
    assert program.batch == 0
    assert program.groups[0].sizes == (16,)
    assert sorted((g.sizes, g.members) for g in program.groups[1:]) == [
        ((12,), ("0/w2",)),
        ((24,), ("0/w1",)),
        ((48,), ("0/b1", "0/w1", "0/w2")),
    ]
    assert group_of(program, "0/w1", 1) is group_of(program, "0/w2", 0)
    assert [program.step.arguments[k].path for k in program.parameters] == ["0/b1", "0/w1", "0/w2"]
