"""Reading artifacts: attributes, numbering, and what is refused."""

from __future__ import annotations

import jax.numpy as jnp
import jaxlib.version
import pytest
from jax import ShapeDtypeStruct as Spec
from jax import lax

from automap_launch.errors import CaptureError, ConfigError
from automap_launch.program.mlir import read_module
from automap_launch.program.program import Value
from tests.program.conftest import make_step


def test_attributes_of_a_convolution_are_plain_data():
    def convolution(x, w):
        return lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 3)), dimension_numbers=("NHWC", "HWIO", "NHWC"))

    step = make_step(convolution, (), Spec((2, 8, 9, 4), jnp.float32), Spec((3, 3, 4, 6), jnp.float32))
    (op,) = read_module(step.modules["cpu"]).functions["main"].ops
    assert op.name == "convolution"
    assert op.attributes["window_strides"] == (2, 1)
    assert op.attributes["padding"] == ((1, 2), (0, 3))
    assert op.attributes["dimension_numbers"]["kernel_output"] == 3
    assert op.types == (Value((2, 5, 10, 6), "float32"),)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "bfloat16", "float16", "complex64", "float8_e4m3fn"])
def test_dtypes_have_numpys_names(dtype):
    step = make_step(lambda x: x, (), Spec((3,), jnp.dtype(dtype)))
    assert read_module(step.modules["cpu"]).functions["main"].types == (Value((3,), dtype),)


def test_operations_are_numbered_in_textual_order_across_functions_and_regions():
    def step(x):
        return lax.scan(lambda c, _: (jnp.where(c > 0, c, 0.0), None), x, None, length=3)[0]

    module = read_module(make_step(step, (), Spec((3,), jnp.float32)).modules["cpu"])
    positions = []

    def collect(region):
        for op in region.ops:
            positions.append(op.position)
            for inner in op.regions:
                collect(inner)

    for function in module.functions.values():
        collect(function)
    assert len(module.functions) > 1
    assert positions == sorted(set(positions))
    assert max(positions) < module.operations


def test_another_jaxlib_is_refused(monkeypatch):
    monkeypatch.setattr(jaxlib.version, "__version__", "0.11.0")
    with pytest.raises(ConfigError, match=r"jaxlib 0\.11\.0 is installed.* works with jaxlib <0\.11,>=0\.10\.2"):
        read_module(b"")


def test_damaged_artifact_is_refused():
    artifact = make_step(jnp.tanh, (), Spec((3,), jnp.float32)).modules["cpu"]
    with pytest.raises(CaptureError, match="no portable StableHLO artifact"):
        read_module(artifact[: len(artifact) // 2])
