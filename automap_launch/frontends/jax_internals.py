"""Everything the front ends take from JAX's private modules, in one place.

Public JAX offers no way to put a trace of one's own under a whole script, nor the flat order in which `jax.jit` passes
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core as extend_core

from automap_launch.tested_versions import require_tested

require_tested("jax", jax.__version__)

from jax._src import core, source_info_util, tree_util  # noqa: E402
from jax._src.interpreters import mlir as jax_mlir  # noqa: E402
from jax._src.lib import _jax, jax_jit  # noqa: E402
from jax._src.lib.mlir import ir, passmanager  # noqa: E402
from jax._src.lib.mlir.dialects import chlo, hlo  # noqa: E402
from jax.extend.mlir import deserialize_portable_artifact  # noqa: E402

EvalTrace = core.EvalTrace
Tracer = core.Tracer
Literal = core.Literal
ShapedArray = core.ShapedArray
typeof = core.typeof
set_current_trace = core.set_current_trace

_own_traces: set[type] = set()


def register_top_level_trace(trace_type: type) -> None:
    """Calls made while a trace of `trace_type` is the current one count as made at top level."""
    _own_traces.add(trace_type)


def _opaque_trace_state(convention: Any = None) -> Any:
    """As JAX's own, with one state for everything at top level, whether under a trace of our own or not.

    Flax NNX lets a variable change only under the trace state in which it was made, and variables made while a trace of
    ours is the current one live on after it.
    """
    if type(core.trace_ctx.trace) in _own_traces:
        return core.OpaqueTraceState(core.eval_trace._weakref)
    return _real_opaque_trace_state(convention)


_real_opaque_trace_state = core.get_opaque_trace_state
for _module in (core, extend_core):
    _module.get_opaque_trace_state = _opaque_trace_state


def at_top_level() -> bool:
    """Whether no JAX transformation (jit, grad, vmap, ...) is being traced, apart from a trace of our own."""
    trace = core.trace_ctx.trace
    return (trace is core.eval_trace or type(trace) in _own_traces) and core.trace_ctx.axis_env is core.top_axis_env


def set_base_trace(trace: Any | None) -> None:
    """Makes `trace` the one under which all threads evaluate eager code; None brings back JAX's own."""
    chosen = core.eval_trace if trace is None else trace
    core.trace_state_strong_ref.set_global(chosen)
    core.trace_state.set_global(chosen._weakref)
    core.trace_ctx.set_trace(chosen)


def evaluating() -> Any:
    """Context manager: eager code runs on the devices, whatever the current trace."""
    return core.set_current_trace(core.eval_trace)


def flatten_arguments(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Flat dynamic arguments as the jitted function passes them, and a hashable signature (trees and statics)."""
    info = jitted._jit_info
    signature, leaves = jax_jit.parse_arguments(
        args,
        tuple(kwargs.values()),
        tuple(kwargs.keys()),
        info.static_argnums,
        info.static_argnames,
        tree_util.tracing_registry,
    )
    return signature, leaves


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Resolved `static_argnums` and `static_argnames` of a jitted function."""
    return tuple(jitted._jit_info.static_argnums), tuple(jitted._jit_info.static_argnames)


def portable_artifact(module: Any) -> bytes:
    """The StableHLO module as a portable artifact that any StableHLO of the same month or later reads."""
    target = hlo.get_version_from_compatibility_requirement(hlo.StablehloCompatibilityRequirement.WEEK_4)
    return bytes(_jax.mlir.serialize_portable_artifact(module, target))


def read_artifact(artifact: bytes) -> Any:
    """The module that a portable artifact holds. Locations survive; operations of `chlo` are legalised."""
    context = ir.Context()
    for dialect in (hlo, chlo):
        dialect.register_dialect(context)
    return deserialize_portable_artifact(artifact, context)


def module_of_hlo(hlo: bytes) -> Any:
    """A serialized HLO module proto as a StableHLO module. Names of its instructions become locations."""
    context = jax_mlir.make_ir_context()
    with context:
        return ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))


def legalize_deprecated(module: Any) -> None:
    """Turns operations that StableHLO keeps for other front ends (`dot`, `broadcast`) into those that JAX emits."""
    hlo.register_stablehlo_passes()
    with module.context:
        passes = passmanager.PassManager.parse("builtin.module(func.func(stablehlo-legalize-deprecated-ops))")
        passes.run(module.operation)


def main_type(module: Any) -> Any:
    """Type of the module's function `main`."""
    return ir.FunctionType(ir.SymbolTable(module.operation)["main"].attributes["function_type"].value)


def ranked(kind: Any) -> tuple[tuple[int, ...], str]:
    """Shape and name of the element type of a ranked tensor type."""
    tensor = ir.RankedTensorType(kind)
    return tuple(tensor.shape), str(tensor.element_type)


def drop_shardings(module: Any) -> None:
    """Takes sharding annotations out of a module lowered for one device, where they say nothing.

    JAX annotates the words of typed PRNG keys, callbacks, and arguments that the script put on a device, even there,
    with a mesh that has no devices; a portable artifact holds StableHLO alone.
    """
    for operation in list(operations(module)):
        if operation.name == "sdy.sharding_constraint":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "sdy.mesh":
            operation.erase()
        else:
            for name in ("sdy.sharding", "arg_attrs", "res_attrs"):
                if name in operation.attributes:
                    del operation.attributes[name]


def operations(module: Any) -> Iterator[Any]:
    """Operations below `module` in pre-order; the module itself is not among them."""
    found: list[Any] = []

    def visit(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return iter(found[1:])


def module_text(module: Any, elide_above: int | None = None) -> str:
    """The module as text without locations; constants of more than `elide_above` elements are elided."""
    return str(module.operation.get_asm(enable_debug_info=False, large_elements_limit=elide_above))


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Jaxprs among an equation's parameters: bodies of loops, branches, inner jits."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def any_equation(jaxpr: Any, accept: Callable[[Any], bool]) -> bool:
    """Whether `accept` holds for an equation of `jaxpr`, or of a jaxpr inside it."""
    return any(
        accept(equation) or any(any_equation(inner, accept) for inner in sub_jaxprs(equation.params))
        for equation in jaxpr.eqns
    )


def name_stack(equation: Any) -> str:
    """The transformations under which an equation was made, like `transpose(jvp(loss))`."""
    return str(equation.source_info.name_stack)


__all__ = [
    "EvalTrace",
    "Literal",
    "ShapedArray",
    "Tracer",
    "any_equation",
    "at_top_level",
    "evaluating",
    "flatten_arguments",
    "jax_mlir",
    "legalize_deprecated",
    "main_type",
    "module_of_hlo",
    "module_text",
    "name_stack",
    "operations",
    "portable_artifact",
    "ranked",
    "register_top_level_trace",
    "set_base_trace",
    "set_current_trace",
    "source_info_util",
    "static_arguments",
    "sub_jaxprs",
    "typeof",
]
