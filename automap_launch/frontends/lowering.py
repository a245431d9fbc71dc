"""A call of a jitted function turned into StableHLO for every platform, from one trace. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from automap_launch.errors import CaptureError
from automap_launch.frontends import jax_internals, refusals
from automap_launch.frontends.jit_hook import HookedFunction, real_jit
from automap_launch.frontends.paths import argument_paths, result_paths
from automap_launch.frontends.source_lines import is_users, source_of
from automap_launch.frontends.step_evidence import stacked
from automap_launch.train_step import Argument, Result, SourceLine, fingerprint_of
from automap_launch.units import format_bytes

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})
# Constants of more elements than this are left out of the readable text; the artifacts hold them.
_TEXT_CONSTANT_ELEMENTS = 64


@dataclass(frozen=True)
class LoweredStep:
    """What lowering a call gives.

    Attributes:
      modules: portable StableHLO artifact by platform.
      arguments, results: in the order of the modules' `main`; roles are all `other`, `replaces` is None.
      out_tree: tree of the returned value.
      text: the first platform's module without locations.
      sources: user's line of the k-th operation of the first platform's module, in pre-order, module excluded.
      has_callbacks: the step calls back into Python.
      fingerprint: of the first platform's module.
      stacked: arguments that are stacks of batches (see `step_evidence.stacked`).
    """

    modules: dict[str, bytes]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    out_tree: Any
    text: str
    sources: tuple[SourceLine | None, ...]
    has_callbacks: bool
    fingerprint: str
    stacked: frozenset[int] = frozenset()


def flatten_call(function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Hashable]:
    """Flat dynamic leaves in the order of the module's arguments, and a key of all else that makes a signature.

    The key holds the argument trees, keyword names and static values, not the shapes. Fast: called every step.
    """
    signature, leaves = jax_internals.flatten_arguments(function.jitted, args, kwargs)
    return leaves, signature


def lower_step(
    function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any], platforms: Sequence[str]
) -> LoweredStep:
    """Traces one call of `function` and lowers it for each of `platforms`.

    Args:
      args, kwargs: the call's arguments; abstract values (`ShapeDtypeStruct`, deferred arrays) do.
      platforms: `cpu`, `cuda`, ... The fingerprint, text and sources are those of the first. A function that calls
        back into Python is lowered for the first alone: a callback is bound to the process that lowers it.

    Raises:
      CaptureError: the function uses arrays from outside that were never made, so that they can be no constants, or
        it has ordered callbacks, which JAX has on one device only.
    """
    traced = traced_keeping_unused(function).trace(*args, **kwargs)
    _refuse_abstract_constants(function, traced)
    _refuse_ordered_callbacks(function, traced.jaxpr.jaxpr)
    callbacks = has_callbacks(traced.jaxpr.jaxpr)
    modules: dict[str, bytes] = {}
    for platform in platforms[:1] if callbacks else platforms:
        module = traced.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
        jax_internals.drop_shardings(module)
        modules[platform] = jax_internals.portable_artifact(module)
    # Writing an artifact rewrites some operations: what is told of the module is told of the one that is read back.
    first = jax_internals.read_artifact(modules[platforms[0]])
    _, arguments, results = describe_call(function, args, kwargs, traced)
    exact_text = _without_addresses(jax_internals.module_text(first))
    return LoweredStep(
        modules=modules,
        arguments=arguments,
        results=results,
        out_tree=jax.tree.structure(traced.out_info),
        text=jax_internals.module_text(first, elide_above=_TEXT_CONSTANT_ELEMENTS),
        sources=tuple(source_of(str(operation.location)) for operation in jax_internals.operations(first)),
        has_callbacks=callbacks,
        fingerprint=fingerprint_of(exact_text),
        stacked=stacked(traced.jaxpr.jaxpr, constants=len(traced.jaxpr.jaxpr.invars) - len(arguments)),
    )


def describe_call(
    function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any], traced: Any
) -> tuple[list[Any], tuple[Argument, ...], tuple[Result, ...]]:
    """Flat leaves, arguments and results of a traced call; roles are all `other`, `replaces` is None."""
    leaves = jax_internals.flatten_arguments(function.jitted, args, kwargs)[1]
    names = argument_paths(function, args, kwargs, *jax_internals.static_arguments(function.jitted))
    avals = traced.jaxpr.in_avals[len(traced.jaxpr.in_avals) - len(leaves) :]
    infos = jax.tree.leaves(traced.args_info)
    outs = jax.tree.leaves(traced.out_info)
    arguments = tuple(
        Argument(name, tuple(aval.shape), str(aval.dtype), "other", bool(info.donated), _is_weak(aval))
        for name, aval, info in zip(names, avals, infos, strict=True)
    )
    results = tuple(
        Result(name, tuple(out.shape), str(out.dtype), weak_type=_is_weak(aval))
        for name, out, aval in zip(result_paths(function, traced.out_info), outs, traced.jaxpr.out_avals, strict=True)
    )
    return leaves, arguments, results


def _is_weak(aval: Any) -> bool:
    return bool(getattr(aval, "weak_type", False))


def traced_keeping_unused(function: HookedFunction) -> Any:
    """The function jitted anew with the user's options and every argument kept: flat leaves and module agree.

    Where arrays lie is the plan's to say: shardings that the user gave to `jax.jit` are left out.
    """
    options = {name: value for name, value in function.options.items() if not name.endswith("_shardings")}
    return real_jit()(function.fun, **{**options, "keep_unused": True})


def has_callbacks(jaxpr: Any) -> bool:
    """Whether `jaxpr` calls back into Python."""
    return jax_internals.any_equation(jaxpr, lambda equation: equation.primitive.name in _CALLBACKS)


def _refuse_ordered_callbacks(function: HookedFunction, jaxpr: Any) -> None:
    def check(equation: Any) -> bool:
        if equation.primitive.name in _CALLBACKS and equation.params.get("ordered"):
            raise refusals.calls_back_in_order(function.identity, _line_of(equation))
        return False

    jax_internals.any_equation(jaxpr, check)


def _line_of(equation: Any) -> SourceLine | None:
    frames = jax_internals.source_info_util.user_frames(equation.source_info.traceback)
    return next((SourceLine(f.file_name, f.start_line) for f in frames if is_users(f.file_name)), None)


def _refuse_abstract_constants(function: HookedFunction, traced: Any) -> None:
    constants = [c for c in (*traced.jaxpr.consts, *traced._consts) if isinstance(c, jax_internals.Tracer)]
    if not constants:
        return
    largest = max(constants, key=lambda c: c.size)
    size = format_bytes(largest.size * getattr(largest.dtype, "itemsize", 8))
    source = function.identity.source
    raise CaptureError(
        f"`{function.identity.name}` uses {len(constants)} array(s) from outside its arguments; the largest is "
        f"{largest.aval.str_short()} ({size}), which stays abstract while capturing",
        hint="pass it to the function as an argument, or raise frontend.materialize_limit above its size",
        file=source.file if source else None,
        line=source.line if source else None,
    )


def _without_addresses(text: str) -> str:
    """Callbacks carry numbers of the process that lowered them; the fingerprint must not."""
    return re.sub(r'(backend_config = ")\d+(")', r"\1\2", re.sub(r"index = \d+ : ui64", "index = 0 : ui64", text))
