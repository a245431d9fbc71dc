"""A serialized HLO module, as other compilers' front ends give it, made a StableHLO module like JAX's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from automap_launch.frontends import jax_internals

_ALIASES = "mhlo.input_output_alias"

# Custom calls that JAX's runtime has as well.
_KNOWN_CALLS = frozenset({"Sharding", "TopK"})

_TYPES = {"i1": "bool", "bf16": "bfloat16", "complex<f32>": "complex64", "complex<f64>": "complex128"}


@dataclass(frozen=True)
class Tensor:
    """Shape and numpy dtype of an argument or result."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Foreign:
    """An operation that keeps a module from being one of JAX's. `name`: of the operation, or of the code that it
    calls; `location`: as MLIR prints it. `dynamic`: a size in it is known only when it runs.
    """

    name: str
    location: str
    dynamic: bool = False


class ForeignOperationError(ValueError):
    """A module has an operation that JAX's runtime or the analysis does not take."""

    def __init__(self, operation: Foreign) -> None:
        super().__init__(f"{operation.name} at {operation.location}")
        self.operation = operation


def from_hlo(hlo: bytes) -> tuple[Any, dict[int, int]]:
    """The module, and for each result that takes an argument's place the index of that argument.

    Raises:
      ForeignOperationError: it calls code outside of XLA, draws random numbers without a state, or has sizes that are
        known only when it runs.
    """
    module = jax_internals.module_of_hlo(hlo)
    _drop_copies(module)
    _check(module)
    # HLO has two products; analysis and JAX know the general one.
    jax_internals.legalize_deprecated(module)
    aliases = {}
    if _ALIASES in module.operation.attributes:
        for entry in module.operation.attributes[_ALIASES]:
            # A lone result is no tuple, and has no index.
            output = next(iter(entry["output_index"]), 0)
            aliases[int(output)] = int(entry["alias"]["parameter_number"].value)
    for name in [str(name) for name in module.operation.attributes if str(name).startswith("mhlo.")]:
        del module.operation.attributes[name]
    return module, aliases


def _check(module: Any) -> None:
    for operation in jax_internals.operations(module):
        name, location = operation.name, str(operation.location)
        if any("?" in str(result.type) for result in operation.results):
            raise ForeignOperationError(Foreign(name, location, dynamic=True))
        if name == "stablehlo.custom_call":
            target = operation.attributes["call_target_name"].value
            if target not in _KNOWN_CALLS:
                raise ForeignOperationError(Foreign(target, location))
        elif name == "stablehlo.rng" or name.startswith("mhlo."):
            raise ForeignOperationError(Foreign(name, location))


def _drop_copies(module: Any) -> None:
    """HLO copies what it returns twice, or as it came; StableHLO, which has no buffers, has no such operation."""
    for operation in list(jax_internals.operations(module)):
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()


def signature(module: Any) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Arguments and results of the module's `main`."""
    kind = jax_internals.main_type(module)
    return [_tensor(t) for t in kind.inputs], [_tensor(t) for t in kind.results]


def _tensor(kind: Any) -> Tensor:
    shape, element = jax_internals.ranked(kind)
    name = _TYPES.get(element)
    if name is None:
        name = (
            f"uint{element[2:]}" if element.startswith("ui")
            else f"int{element[1:]}" if element.startswith("i")
            else f"float{element[1:]}"
        )  # fmt: skip
    return Tensor(shape, name)
