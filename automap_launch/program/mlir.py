"""A portable StableHLO artifact read into plain Python. The only module of `program` that touches jaxlib's MLIR.

No backend is initialised: deserialising and walking a module needs an MLIR context alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jaxlib.version
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, sdy, stablehlo

from automap_launch.errors import CaptureError
from automap_launch.program.program import Value
from automap_launch.tested_versions import require_tested

_DTYPES = {
    "i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FNUZ": "float8_e4m3fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E4M3": "float8_e4m3",
    "f8E3M4": "float8_e3m4", "f8E8M0FNU": "float8_e8m0fnu", "f4E2M1FN": "float4_e2m1fn",
}  # fmt: skip


@dataclass(slots=True)
class RawOp:
    """An operation as the module has it. Values are numbered within one function, its regions included.

    Attributes:
      name: without its dialect.
      attributes: those that the analysis reads, as ints, tuples, strings and dicts.
      position: its place among all operations of the module, in textual order.
      reducer: of an operation with a scalar body (reduce, scatter ...): the one op in it, None for any other body.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[Value, ...]
    attributes: dict[str, Any]
    regions: tuple[Region, ...]
    position: int
    reducer: str | None = None


@dataclass(slots=True)
class Region:
    """A block of operations: a function's body, or a loop's."""

    arguments: tuple[int, ...]
    types: tuple[Value, ...]
    ops: list[RawOp] = field(default_factory=list)
    returns: tuple[int, ...] = ()

    def free(self) -> list[int]:
        """Values that it reads from outside, in order of first use."""
        inner = set(self.arguments)
        found: dict[int, None] = {}
        for op in self.ops:
            for value in (*op.operands, *(v for region in op.regions for v in region.free())):
                if value not in inner:
                    found.setdefault(value)
            inner.update(op.results)
        for value in self.returns:
            if value not in inner:
                found.setdefault(value)
        return list(found)


@dataclass(frozen=True, slots=True)
class Module:
    """Functions by name (the step itself is `main`), and the number of operations in all of them."""

    functions: dict[str, Region]
    operations: int


def read_module(artifact: bytes) -> Module:
    """Reads a portable artifact.

    Raises:
      ConfigError: this version of jaxlib is outside the tested range.
      CaptureError: the artifact is damaged, or has tensors of unknown shape.
    """
    require_tested("jaxlib", jaxlib.version.__version__)
    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    try:
        module = mlir.deserialize_portable_artifact(artifact, context)
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise CaptureError(
            f"the step's module is no portable StableHLO artifact that jaxlib {jaxlib.version.__version__} reads: "
            f"{error}",
            hint="capture the script again with this environment",
        ) from error
    reader = _Reader()
    functions = {}
    for function in module.body.operations:
        op = function.operation
        position = next(reader.positions)
        if op.name == "func.func":
            name = ir.StringAttr(op.attributes["sym_name"]).value
            functions[name] = reader.region(op.regions[0], {})
        elif op.regions:
            raise CaptureError(f"operation {position} of the module is {op.name}: a function was expected")
    return Module(functions, next(reader.positions))


class _Reader:
    """Numbers operations across a module in textual order, and values across a function."""

    def __init__(self) -> None:
        self.positions: Iterator[int] = iter(range(1 << 62))
        self.types: dict[Any, Value] = {}

    def region(self, region: Any, numbers: dict[Any, int]) -> Region:
        if not region.blocks:
            return Region((), ())
        block = region.blocks[0]
        arguments = []
        for argument in block.arguments:
            numbers[argument] = len(numbers)
            arguments.append(numbers[argument])
        out = Region(tuple(arguments), tuple(self.value(a.type) for a in block.arguments))
        for view in block.operations:
            op = view.operation
            position = next(self.positions)
            name = op.name.rsplit(".", 1)[-1]
            operands = tuple([numbers[v] for v in op.operands])
            if name == "return":
                out.returns = operands
                continue
            results = []
            for result in op.results:
                numbers[result] = len(numbers)
                results.append(numbers[result])
            regions = tuple(self.region(r, numbers) for r in op.regions)
            types = tuple([self.value(r.type) for r in op.results])
            out.ops.append(
                RawOp(name, operands, tuple(results), types, _attributes(op), regions, position, _reducer(regions))
            )
        return out

    def value(self, kind: Any) -> Value:
        known = self.types.get(kind)
        if known is None:
            known = self.types[kind] = _value(kind)
        return known


def _value(kind: Any) -> Value:
    if not isinstance(kind, ir.RankedTensorType):
        return Value((), "token")
    if not kind.has_static_shape:
        raise CaptureError(
            f"the step has a tensor of unknown shape, {kind}", hint="call the step with arrays of fixed shapes"
        )
    return Value(tuple(kind.shape), _dtype(str(kind.element_type)))


def _dtype(text: str) -> str:
    integer = re.fullmatch(r"(u?)i(\d+)", text)
    if text not in _DTYPES and integer:
        return f"{integer[1]}int{integer[2]}"
    return _DTYPES.get(text, text)


def _reducer(regions: tuple[Region, ...]) -> str | None:
    if len(regions) != 1 or len(regions[0].ops) != 1:
        return None
    return regions[0].ops[0].name


def _ints(attribute: Any) -> tuple[int, ...]:
    return tuple(attribute)


def _table(attribute: Any) -> tuple[tuple[int, int], ...]:
    elements = ir.DenseIntElementsAttr(attribute)
    flat = [int(x) for x in elements]
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _integer(attribute: Any) -> int:
    return int(ir.IntegerAttr(attribute).value)


def _symbol(attribute: Any) -> str:
    return str(ir.FlatSymbolRefAttr(attribute).value)


def _string(attribute: Any) -> str:
    return str(ir.StringAttr(attribute).value)


def _constant(attribute: Any) -> int | str | None:
    """An integer scalar's value; `zero` or `splat` for any other constant of one repeated value; `count` for a vector
    0, 1, 2 ...; None for any other table."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    if not attribute.is_splat:
        return "count" if _is_count(attribute) else None
    scalar = attribute.get_splat_value()
    if ir.ShapedType(attribute.type).rank == 0 and isinstance(scalar, (ir.BoolAttr, ir.IntegerAttr)):
        return int(scalar.value)
    is_zero = isinstance(scalar, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr)) and scalar.value == 0
    return "zero" if is_zero else "splat"


def _is_count(attribute: Any) -> bool:
    if not isinstance(attribute, ir.DenseIntElementsAttr) or ir.ShapedType(attribute.type).rank != 1:
        return False
    return all(int(element) == position for position, element in enumerate(attribute))


def _direction(attribute: Any) -> str:
    return str(stablehlo.ComparisonDirectionAttr(attribute).value)


def _dot(attribute: Any) -> dict[str, tuple[int, ...]]:
    numbers = stablehlo.DotDimensionNumbers(attribute)
    return {
        "lhs_batch": tuple(numbers.lhs_batching_dimensions),
        "rhs_batch": tuple(numbers.rhs_batching_dimensions),
        "lhs_contract": tuple(numbers.lhs_contracting_dimensions),
        "rhs_contract": tuple(numbers.rhs_contracting_dimensions),
    }


def _gather(attribute: Any) -> dict[str, Any]:
    numbers = stablehlo.GatherDimensionNumbers(attribute)
    return {
        "offset_dims": tuple(numbers.offset_dims),
        "collapsed": tuple(numbers.collapsed_slice_dims),
        "operand_batch": tuple(numbers.operand_batching_dims),
        "index_batch": tuple(numbers.start_indices_batching_dims),
        "index_map": tuple(numbers.start_index_map),
        "index_vector_dim": int(numbers.index_vector_dim),
    }


def _scatter(attribute: Any) -> dict[str, Any]:
    numbers = stablehlo.ScatterDimensionNumbers(attribute)
    return {
        "update_window": tuple(numbers.update_window_dims),
        "inserted": tuple(numbers.inserted_window_dims),
        "operand_batch": tuple(numbers.input_batching_dims),
        "index_batch": tuple(numbers.scatter_indices_batching_dims),
        "index_map": tuple(numbers.scattered_dims_to_operand_dims),
        "index_vector_dim": int(numbers.index_vector_dim),
    }


def _convolution(attribute: Any) -> dict[str, Any]:
    numbers = stablehlo.ConvDimensionNumbers(attribute)
    return {
        "input_batch": numbers.input_batch_dimension,
        "input_feature": numbers.input_feature_dimension,
        "input_spatial": tuple(numbers.input_spatial_dimensions),
        "kernel_input": numbers.kernel_input_feature_dimension,
        "kernel_output": numbers.kernel_output_feature_dimension,
        "kernel_spatial": tuple(numbers.kernel_spatial_dimensions),
        "output_batch": numbers.output_batch_dimension,
        "output_feature": numbers.output_feature_dimension,
        "output_spatial": tuple(numbers.output_spatial_dimensions),
    }


def _dimension_numbers(op: str) -> Callable[[Any], dict[str, Any]]:
    return _gather if op.endswith("gather") else _convolution


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "broadcast_dimensions", "permutation", "dimensions", "slice_sizes", "start_indices", "limit_indices",
            "strides", "edge_padding_low", "edge_padding_high", "interior_padding", "window_dimensions",
            "window_strides", "base_dilations", "window_dilations", "lhs_dilation", "rhs_dilation", "fft_length",
        ),
        _ints,
    ),
    **dict.fromkeys(("dimension", "iota_dimension", "feature_group_count", "batch_group_count"), _integer),
    **dict.fromkeys(("callee", "decomposition"), _symbol),
    "padding": _table,
    "call_target_name": _string,
    "value": _constant,
    "comparison_direction": _direction,
    "dot_dimension_numbers": _dot,
    "scatter_dimension_numbers": _scatter,
}  # fmt: skip


def _attributes(op: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in op.attributes:
        convert = _CONVERTERS.get(name)
        if name == "value" and _is_complex_tensor(op):
            out[name] = None  # the bindings cannot read complex elements
        elif convert is not None:
            out[name] = convert(op.attributes[name])
        elif name == "dimension_numbers":
            out[name] = _dimension_numbers(op.name)(op.attributes[name])
    return out


def _is_complex_tensor(op: Any) -> bool:
    kind = op.results[0].type
    return isinstance(kind, ir.RankedTensorType) and isinstance(kind.element_type, ir.ComplexType)
