"""The operations of a step's module, and new modules made of them. The only module of `split` that touches MLIR.

A `Builder` makes one function `main`: of clones of the step's operations, whose result types it may change (a
micro-batch is a part of the batch), and of a few operations of its own. Everything an operation says beyond its
operands and result types, its regions included, stays as the user's program has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo

from automap_launch.program.program import Value

# As the front ends write the step itself.
_TARGET = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_4)

_ELEMENTS = {
    "bool": "i1", "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64",
    "complex64": "complex<f32>", "complex128": "complex<f64>",
    "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2", "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e4m3fnuz": "f8E4M3FNUZ", "float8_e5m2fnuz": "f8E5M2FNUZ", "float8_e4m3": "f8E4M3",
    "float8_e3m4": "f8E3M4", "float8_e8m0fnu": "f8E8M0FNU", "float4_e2m1fn": "f4E2M1FN",
}  # fmt: skip


class Origin:
    """The step's own module: operations by position, counted as `program.mlir` counts them."""

    def __init__(self, artifact: bytes) -> None:
        self.context = ir.Context()
        for dialect in (stablehlo, chlo):
            dialect.register_dialect(self.context)
        self.module = mlir.deserialize_portable_artifact(artifact, self.context)
        self.operations: list[Any] = []
        self.functions: dict[str, Any] = {}
        for function in self.module.body.operations:
            self.operations.append(function.operation)
            if function.operation.name == "func.func":
                self.functions[ir.StringAttr(function.operation.attributes["sym_name"]).value] = function.operation
                self._collect(function.operation.regions[0])
        self._types: dict[Value, Any] = {}

    def type(self, kind: Value) -> Any:
        """The MLIR type of a tensor."""
        if kind not in self._types:
            element = _ELEMENTS.get(kind.dtype) or kind.dtype.replace("uint", "ui").replace("int", "i")
            dims = "".join(f"{size}x" for size in kind.shape)
            self._types[kind] = ir.Type.parse(f"tensor<{dims}{element}>", self.context)
        return self._types[kind]

    def splat(self, position: int) -> Any | None:
        """The one element that a constant repeats; None for a table, for complex numbers, which the bindings cannot
        read, and for an operation that is no constant."""
        operation = self.operations[position]
        if operation.name != "stablehlo.constant" or isinstance(operation.results[0].type.element_type, ir.ComplexType):
            return None
        value = ir.DenseElementsAttr(operation.attributes["value"])
        return value.get_splat_value() if value.is_splat else None

    def _collect(self, region: Any) -> None:
        if not region.blocks:
            return
        for view in region.blocks[0].operations:
            operation = view.operation
            self.operations.append(operation)
            for nested in operation.regions:
                self._collect(nested)


class Builder:
    """A new module with one function, built operation by operation. Values are MLIR's own."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._types: list[Any] = []
        self._callees: set[str] = set()
        with origin.context, ir.Location.unknown():
            self.module = ir.Module.create()
            with ir.InsertionPoint(self.module.body):
                empty = ir.TypeAttr.get(ir.FunctionType.get([], []))
                self.function = ir.Operation.create(
                    "func.func",
                    attributes={
                        "sym_name": ir.StringAttr.get("main"),
                        "function_type": empty,
                        "sym_visibility": ir.StringAttr.get("public"),
                    },
                    regions=1,
                )
            self.block = self.function.regions[0].blocks.append()
            self._point = ir.InsertionPoint(self.block)

    def __enter__(self) -> Builder:
        self._contexts = [self.origin.context, ir.Location.unknown(self.origin.context), self._point]
        for context in self._contexts:
            context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)

    def argument(self, kind: Value) -> Any:
        self._types.append(self.origin.type(kind))
        return self.block.add_argument(self._types[-1], ir.Location.unknown())

    def clone(
        self,
        position: int,
        operands: Sequence[Any],
        kinds: Sequence[Value],
        attributes: Mapping[str, Sequence[int]] | None = None,
    ) -> list[Any]:
        """The operation at `position` on other operands. Those beyond its own are what its regions read from outside.

        Args:
          kinds: of its results. attributes: those to replace, lists of integers.
        """
        original = self.origin.operations[position]
        outside = _free_values(original) if original.regions else []
        copy = original.clone()
        own = len(copy.operands)
        for place in range(own):
            copy.operands[place] = operands[place]
        if outside:
            _rewire(copy, dict(zip(outside, operands[own:], strict=True)))
        if original.regions:
            self._callees.update(_callees(original))
        for name, numbers in (attributes or {}).items():
            copy.attributes[name] = ir.DenseI64ArrayAttr.get(list(numbers))
        for result, kind in zip(copy.results, kinds, strict=True):
            wanted = self.origin.type(kind)
            if result.type != wanted:
                result.set_type(wanted)
        return list(copy.results)

    def number(self, kind: Value, value: int) -> Any:
        """An integer or boolean constant, repeated over the whole tensor."""
        tensor = self.origin.type(kind)
        element = ir.IntegerAttr.get(ir.RankedTensorType(tensor).element_type, value)
        return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(tensor, element)).result

    def splat(self, position: int, kind: Value) -> Any:
        """The repeated element of the constant at `position`, in a tensor of another shape."""
        element = self.origin.splat(position)
        return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(self.origin.type(kind), element)).result

    def iota(self, kind: Value, dim: int) -> Any:
        return stablehlo.IotaOp(self.origin.type(kind), dim).result

    def convert(self, value: Any, kind: Value) -> Any:
        return stablehlo.ConvertOp(self.origin.type(kind), value).result

    def add(self, left: Any, right: Any) -> Any:
        return stablehlo.AddOp(left, right).result

    def maximum(self, left: Any, right: Any) -> Any:
        return stablehlo.MaxOp(left, right).result

    def minimum(self, left: Any, right: Any) -> Any:
        return stablehlo.MinOp(left, right).result

    def multiply(self, left: Any, right: Any) -> Any:
        return stablehlo.MulOp(left, right).result

    def divide(self, left: Any, right: Any) -> Any:
        return stablehlo.DivOp(left, right).result

    def equal(self, left: Any, right: Any) -> Any:
        return stablehlo.CompareOp(left, right, stablehlo.ComparisonDirectionAttr.get("EQ")).result

    def select(self, predicate: Any, left: Any, right: Any) -> Any:
        return stablehlo.SelectOp(predicate, left, right).result

    def barrier(self, value: Any) -> Any:
        return stablehlo.OptimizationBarrierOp([value]).results[0]

    def reshape(self, value: Any, kind: Value) -> Any:
        return stablehlo.ReshapeOp(self.origin.type(kind), value).result

    def broadcast(self, value: Any, kind: Value, dims: Sequence[int] = ()) -> Any:
        wanted = self.origin.type(kind)
        return stablehlo.BroadcastInDimOp(wanted, value, ir.DenseI64ArrayAttr.get(list(dims))).result

    def slice(self, value: Any, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Any:
        numbers = [ir.DenseI64ArrayAttr.get(list(x)) for x in (starts, limits, strides)]
        return stablehlo.SliceOp(value, *numbers).result

    def dynamic_slice(self, value: Any, starts: Sequence[Any], sizes: Sequence[int]) -> Any:
        return stablehlo.DynamicSliceOp(value, list(starts), ir.DenseI64ArrayAttr.get(list(sizes))).result

    def concatenate(self, values: Sequence[Any], dim: int) -> Any:
        return stablehlo.ConcatenateOp(list(values), dim).result

    def finish(self, results: Sequence[Any]) -> bytes:
        """Returns `results`; the module as a portable artifact, without locations: equal parts have equal bytes.

        Raises:
          ValueError: MLIR finds the module at fault, which is an error of the splitting.
        """
        ir.Operation.create("func.return", operands=list(results))
        self.function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(self._types, [r.type for r in results])
        )
        self._copy_callees()
        try:
            self.module.operation.verify()
        except ir.MLIRError as error:
            raise ValueError(f"a part of the step came out wrong: {error}") from error
        text = self.module.operation.get_asm(enable_debug_info=False)
        return bytes(mlir.serialize_portable_artifact(text, _TARGET))

    def _copy_callees(self) -> None:
        pending, done = list(self._callees), set()
        while pending:
            name = pending.pop()
            if name in done:
                continue
            done.add(name)
            function = self.origin.functions[name]
            function.clone(ip=ir.InsertionPoint(self.module.body))
            pending.extend(_callees(function))


def _free_values(operation: Any) -> list[Any]:
    """As `unroll.free_values`: what an operation's regions read from outside it, in order of first use."""
    inner: set[Any] = set()
    found: dict[Any, None] = {}

    def visit(region: Any) -> None:
        for block in region.blocks:
            inner.update(block.arguments)
            for view in block.operations:
                item = view.operation
                for value in item.operands:
                    if value not in inner:
                        found.setdefault(value)
                for nested in item.regions:
                    visit(nested)
                inner.update(item.results)

    for region in operation.regions:
        visit(region)
    return list(found)


def _rewire(operation: Any, replacement: Mapping[Any, Any]) -> None:
    for region in operation.regions:
        for block in region.blocks:
            for view in block.operations:
                item = view.operation
                for place in range(len(item.operands)):
                    if item.operands[place] in replacement:
                        item.operands[place] = replacement[item.operands[place]]
                _rewire(item, replacement)


def _callees(operation: Any) -> set[str]:
    found: set[str] = set()

    def visit(item: Any) -> Any:
        for name in ("callee", "decomposition"):
            if name in item.attributes:
                found.add(ir.FlatSymbolRefAttr(item.attributes[name]).value)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found


__all__ = ["Builder", "Origin"]
