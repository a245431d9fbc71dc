"""Readable, stable paths of a call's flat arguments and results: `state/params/Dense_0/kernel`, `0/params/w`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from automap_launch.frontends import libraries
from automap_launch.frontends.jit_hook import HookedFunction


def argument_paths(
    function: HookedFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: Sequence[int],
    static_argnames: Sequence[str],
) -> list[str]:
    """One path a dynamic leaf, in the order of the flat call; each begins with the parameter's name."""
    if libraries.is_equinox(function.fun):
        return _unique(libraries.equinox_argument_paths(function.fun, args))
    positional = [
        (name, value)
        for index, (name, value) in enumerate(zip(_positional_names(function, len(args)), args, strict=True))
        if index not in static_argnums
    ]
    named = [(name, kwargs[name]) for name in sorted(kwargs) if name not in static_argnames]
    return _unique([path for name, value in positional + named for path in libraries.leaf_paths(name, value)])


def result_paths(function: HookedFunction, out: Any) -> list[str]:
    """One path a leaf of the returned value `out`; a lone leaf is called `result`."""
    if libraries.is_equinox(function.fun):
        return _unique(libraries.equinox_result_paths(out))
    if libraries.is_nnx(function.fun):
        return _unique(libraries.nnx_result_paths(function.fun, out))
    return _unique(libraries.leaf_paths("", out))


def _positional_names(function: HookedFunction, count: int) -> list[str]:
    signature = libraries.signature_of(function.fun)
    names: list[str] = []
    for parameter in signature.parameters.values() if signature else ():
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}/{i}" for i in range(count - len(names)))
    return (names + [f"arg{i}" for i in range(len(names), count)])[:count]


def _unique(paths: list[str]) -> list[str]:
    """The paths, a counter after those that come twice, so that a path names one leaf."""
    seen: dict[str, int] = {}
    unique: list[str] = []
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        unique.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return unique
