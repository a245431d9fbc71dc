"""A serialized HLO module, as other compilers' front ends give it, made a StableHLO module like JAX's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from automap_launch.frontends import jax_internals

_ALIASES = "mhlo.input_output_alias"

_TYPES = {"i1": "bool", "bf16": "bfloat16", "complex<f32>": "complex64", "complex<f64>": "complex128"}


@dataclass(frozen=True)
class Tensor:
    """Shape and numpy dtype of an argument or result."""

    shape: tuple[int, ...]
    dtype: str


def from_hlo(hlo: bytes) -> tuple[Any, dict[int, int]]:
    """The module, and for each result that takes an argument's place the index of that argument."""
    module = jax_internals.module_of_hlo(hlo)
    _drop_copies(module)
    # HLO has two products; analysis and JAX know the general one.
    jax_internals.legalize_deprecated(module)
    aliases = {}
    if _ALIASES in module.operation.attributes:
        for entry in module.operation.attributes[_ALIASES]:
            (output,) = list(entry["output_index"])
            aliases[int(output)] = int(entry["alias"]["parameter_number"].value)
    for name in [str(name) for name in module.operation.attributes if str(name).startswith("mhlo.")]:
        del module.operation.attributes[name]
    return module, aliases


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


def custom_calls(module: Any) -> list[str]:
    """Names of the functions outside of XLA that the module calls, and of operations whose result is not fixed by
    their operands (`rng`).
    """
    found = []
    for operation in jax_internals.operations(module):
        if operation.name == "stablehlo.custom_call":
            found.append(operation.attributes["call_target_name"].value)
        elif operation.name == "stablehlo.rng":
            found.append("rng")
        elif operation.name.startswith("mhlo."):
            found.append(operation.name)
    return found


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
