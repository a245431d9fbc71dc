"""Flops against XLA's own count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec
from jax import lax

from automap_launch.program.analyse import analyse
from tests.program import models
from tests.program.conftest import make_step

F32 = jnp.float32


def counted(function, *arguments):
    program = analyse(make_step(function, (), *arguments))
    return sum(op.flops * op.times for op in program.ops)


def by_xla(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


@pytest.mark.parametrize(
    "model",
    [models.mlp((64, 256, 128, 32), batch=64), models.language_model(2), models.convolutional(batch=16)],
    ids=["mlp", "lm", "cnn"],
)
def test_whole_steps_match_xla(model):
    function, state, batch = model
    assert counted(function, *state, *batch) == pytest.approx(by_xla(function, *state, *batch), rel=0.05)


CONVOLUTIONS = {
    "same": {"window_strides": (1, 1), "padding": "SAME"},
    "valid, strided": {"window_strides": (2, 3), "padding": "VALID"},
    "dilated": {"window_strides": (1, 1), "padding": "SAME", "rhs_dilation": (2, 1)},
    "transposed": {"window_strides": (1, 1), "padding": ((1, 2), (0, 1)), "lhs_dilation": (2, 2)},
    "grouped": {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 4},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_match_xla_exactly(name):
    options = CONVOLUTIONS[name]
    channels = 8 // options.get("feature_group_count", 1)
    arguments = Spec((2, 11, 12, 8), F32), Spec((3, 3, channels, 16), F32)

    def convolution(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)

    assert counted(convolution, *arguments) == by_xla(convolution, *arguments)


def test_batched_dot_counts_each_product():
    function = lambda a, b: jnp.einsum("bik,bkj->bij", a, b)  # noqa: E731
    assert counted(function, Spec((2, 4, 6), F32), Spec((2, 6, 8), F32)) == 2 * 2 * 4 * 6 * 8


def test_moving_data_is_free_and_fusable():
    program = analyse(make_step(lambda x: x.T.reshape(3, 2, 4)[:, :1], (), Spec((4, 6), F32)))
    assert [op.flops for op in program.ops] == [0] * len(program.ops)
    assert all(op.fusable for op in program.ops)


def test_dots_and_sums_are_not_fusable():
    program = analyse(make_step(lambda x, w: jnp.sum(jnp.tanh(x @ w), 0), (), Spec((4, 6), F32), Spec((6, 8), F32)))
    assert {op.name: op.fusable for op in program.ops} == {
        "dot_general": False, "tanh": True, "reduce": False, "constant": True,
    }  # fmt: skip
