"""Reductions over a sharded dim, whatever they begin with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from automap_launch.runtime.mesh import make_mesh
from automap_launch.runtime.module_function import ModuleFunction
from tests.runtime import captured_by_hand

X = np.random.default_rng(0).integers(1, 9, (8, 3))


@pytest.mark.parametrize(
    ("reducer", "begin", "dtype"),
    [
        (lax.add, 1, "float32"),
        (lax.add, 0, "float32"),
        (lax.mul, 2, "float32"),
        (lax.max, 7.5, "bfloat16"),
        (lax.min, 0.5, "float32"),
        (lax.add, 3, "int32"),
        (lax.max, 8, "uint8"),
        (lax.min, -5, "int16"),
        (lax.bitwise_or, True, "bool"),
    ],
)
def test_what_a_reduction_begins_with_counts_once(reducer: Any, begin: Any, dtype: str) -> None:
    x = (X > 8) if dtype == "bool" else X.astype(jnp.dtype(dtype))

    def step(x: Any) -> Any:
        return lax.reduce(x, jnp.asarray(begin, x.dtype), reducer, (0,)), lax.reduce(x, x[0, 0], reducer, (0, 1))

    captured = captured_by_hand.capture(step, jnp.asarray(x))
    function = ModuleFunction(captured.artifact, captured.arguments, captured.results)
    sharding = jax.NamedSharding(make_mesh({"data": 4}, jax.devices()[:4]), jax.P("data"))
    for got, expected in zip(jax.jit(function, in_shardings=sharding)(x), jax.jit(step)(x), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
