"""What is done to a captured StableHLO module before it is merged into one that XLA partitions."""

from __future__ import annotations

import math
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

# By reducer: what a reduction of floats begins with when that is to count for nothing.
_OF_FLOATS = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}


def prepare(module: Any) -> None:
    """Drops what the module says about shardings, and has its reductions begin with what counts for nothing."""
    _drop_shardings(module)
    reductions: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.reduce" and len(operation.results) == 1:
            reductions.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for reduction in reductions:
        with reduction.location:
            _begin_with_identity(reduction)


def _drop_shardings(module: Any) -> None:
    """The module was captured on one device, for which all that it says about shardings is empty.

    Left in, a constraint would name a mesh that the module it is merged into does not have, and XLA crashes on that
    (`jax.random.key_data` leaves such a constraint behind).
    """
    constraints: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call" and operation.attributes["call_target_name"].value == "Sharding":
            constraints.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation in constraints:
        operation.results[0].replace_all_uses_with(operation.operands[0])
        operation.erase()
    for operation in list(module.body.operations):
        if operation.operation.name != "func.func":
            operation.operation.erase()
            continue
        for name in ("arg_attrs", "res_attrs"):
            if name in operation.attributes:
                del operation.attributes[name]


def _begin_with_identity(reduction: Any) -> None:
    """`reduce(x, begin)` as `reduce(x, identity)`, and `begin` after it.

    Where the dims that are reduced are sharded, XLA counts what a reduction begins with never, or once a device.
    """
    begin, result = reduction.operands[1], reduction.results[0]
    body = [operation.operation for operation in reduction.regions[0].blocks[0].operations]
    name = body[0].name.removeprefix("stablehlo.")
    identity = _identity(name, begin.type.element_type)
    if len(body) != 2 or identity is None or _is_constant(begin, identity):
        return
    with ir.InsertionPoint(reduction):
        nothing = stablehlo.constant(ir.DenseElementsAttr.get_splat(begin.type, identity))
        reduction.operands[1] = nothing
    block = list(reduction.block.operations)
    after = block[[operation.operation for operation in block].index(reduction) + 1]
    users = [(use.owner, use.operand_number) for use in result.uses]
    with ir.InsertionPoint(after):
        everywhere = stablehlo.broadcast_in_dim(result.type, begin, ir.DenseI64ArrayAttr.get([]))
        whole = ir.Operation.create(body[0].name, results=[result.type], operands=[result, everywhere])
    for user, number in users:
        user.operands[number] = whole.results[0]


def _identity(reducer: str, element: Any) -> Any | None:
    """What does not change the other operand of `reducer`, as an attribute; None for complex numbers, and for another
    reducer."""
    if isinstance(element, ir.FloatType):
        value = _OF_FLOATS.get(reducer)
        return None if value is None else ir.FloatAttr.get(element, value)
    if not isinstance(element, ir.IntegerType):
        return None
    ones = (1 << element.width) - 1
    lowest, highest = (0, ones) if element.is_unsigned or element.width == 1 else (1 << element.width - 1, ones >> 1)
    of_integers = {"add": 0, "multiply": 1, "maximum": lowest, "minimum": highest, "or": 0, "xor": 0, "and": ones}
    value = of_integers.get(reducer)
    return None if value is None else ir.IntegerAttr.get(element, value)


def _is_constant(value: Any, number: Any) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return False
    return bool(ir.DenseElementsAttr(owner.attributes["value"]).get_splat_value() == number)
