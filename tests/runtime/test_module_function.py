"""A module as a function: types, keys, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.runtime.module_function import ModuleFunction, key_implementation
from tests.runtime.captured_by_hand import capture


def test_every_dtype_comes_through() -> None:
    dtypes = [
        "bool",
        "int8",
        "uint8",
        "int32",
        "uint32",
        "float16",
        "bfloat16",
        "float32",
        "complex64",
        "float8_e4m3fn",
    ]
    arrays = [jnp.ones(2, d) for d in dtypes]
    captured = capture(lambda s, x: (s, x), arrays, jnp.ones(1))
    results = jax.jit(ModuleFunction(captured.artifact, captured.arguments, captured.results))(*captured.leaves)
    assert [str(r.dtype) for r in results[:-1]] == dtypes


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_go_in_and_out_as_keys(implementation: str) -> None:
    def step(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, noise = jax.random.split(key)
        return key, x + jax.random.normal(noise, x.shape)

    key = jax.random.key(5, impl=implementation)
    captured = capture(step, key, jnp.zeros(3))
    function = jax.jit(ModuleFunction(captured.artifact, captured.arguments, captured.results))
    after, noisy = function(key, jnp.zeros(3))
    expected_key, expected = step(key, jnp.zeros(3))
    assert after.dtype == expected_key.dtype
    np.testing.assert_array_equal(jax.random.key_data(after), jax.random.key_data(expected_key))
    np.testing.assert_allclose(noisy, expected, rtol=1e-6)


def test_a_module_runs_inside_other_functions() -> None:
    captured = capture(lambda s, x: (s * 2 + x.sum(), x.sum()), jnp.ones(3), jnp.ones(2))
    function = ModuleFunction(captured.artifact, captured.arguments, captured.results)

    def twice(s: jax.Array, x: jax.Array) -> jax.Array:
        return function(function(s, x)[0], x)[0]

    np.testing.assert_array_equal(jax.jit(twice)(*captured.leaves), np.full(3, 10.0))


def test_a_module_of_other_types_is_refused() -> None:
    captured = capture(lambda s, x: (s, x.sum()), jnp.ones(3), jnp.ones(2))
    with pytest.raises(ValueError, match=r"argument 0 is float32\[3\], but float32\[2\] in the module"):
        ModuleFunction(captured.artifact, captured.arguments[::-1][1:] * 2, captured.results)
    with pytest.raises(ValueError, match="2 results, the step 1"):
        ModuleFunction(captured.artifact, captured.arguments, captured.results[:1])


def test_keys_of_an_unknown_implementation_are_refused() -> None:
    assert key_implementation("float32") is None
    with pytest.raises(ValueError, match=r"key<mine>.*threefry2x32"):
        key_implementation("key<mine>")
