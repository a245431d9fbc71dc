"""What JAX libraries wrap around the user's function before they give it to `jax.jit`: found and taken off again.

Flax NNX and Equinox hand `jax.jit` a function of their own, with the user's inside. Names, source lines and argument
paths shown to the user are those of the function inside.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax

from automap_launch.train_step import SourceLine, StepIdentity

_LOCALS = "<locals>."
RESULT = "result"


def is_equinox(fun: Any) -> bool:
    """Whether `fun` is the wrapper that `equinox.filter_jit` compiles."""
    code = getattr(fun, "__code__", None)
    return code is not None and code.co_name == "fun_wrapped" and "equinox" in code.co_filename


def is_nnx(fun: Any) -> bool:
    """Whether `fun` is the wrapper that `flax.nnx.jit` compiles."""
    return type(fun).__module__.startswith("flax.nnx.")


def definition_of(fun: Any, args: tuple[Any, ...]) -> Any:
    """The user's function behind `fun`, given the arguments of a call (Equinox passes the function as one of them)."""
    if not is_equinox(fun):
        return fun
    donated, kept, static = args
    import equinox

    dynamic = {**donated, **kept}["fun"]
    return equinox._compile_utils.hashable_combine(dynamic, static[0])


def unwrap(fun: Any) -> Any:
    """The plain function inside partials, decorators, bound methods and library wrappers."""
    for _ in range(32):
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif is_nnx(fun) and hasattr(fun, "f"):
            fun = fun.f
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        elif isinstance(call := inspect.getattr_static(type(fun), "__call__", None), types.FunctionType):
            fun = call  # an object with a `__call__` method written in Python
        else:
            return fun
    return fun


def identity_of(fun: Any) -> StepIdentity:
    """Name and place of the user's function: `train_step`, `Trainer.step`, `<lambda>`."""
    inner = unwrap(fun)
    name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None) or type(inner).__name__
    code = getattr(inner, "__code__", None)
    source = None if code is None else SourceLine(code.co_filename, code.co_firstlineno)
    if is_equinox(inner):
        source = None
    return StepIdentity(str(name).rpartition(_LOCALS)[2], source)


def signature_of(fun: Callable[..., Any]) -> inspect.Signature | None:
    """Signature of `fun` as it is called, or None where Python knows none."""
    try:
        return inspect.signature(fun)
    except (TypeError, ValueError):
        return None


def equinox_argument_paths(fun: Any, args: tuple[Any, ...]) -> list[str]:
    """Paths of the dynamic leaves that `equinox.filter_jit` passes: its parts `fun`, `first` and `rest`."""
    donated, kept, static = args
    (static_fun, static_first, static_rest), user = static, definition_of(fun, args)
    trees = {"fun": static_fun[1], "first": static_first[1], "rest": static_rest[1]}
    names = [p.name for p in signature.parameters.values()] if (signature := signature_of(user)) else []
    paths: list[str] = []
    for part in (donated, kept):
        for key in sorted(part):
            skeleton = trees[key].unflatten(range(trees[key].num_leaves))
            by_index = {index: path for path, index in _equinox_leaves(key, skeleton, names)}
            paths.extend(by_index[i] for i, leaf in enumerate(part[key]) if leaf is not None)
    return paths


def _equinox_leaves(key: str, skeleton: Any, names: list[str]) -> list[tuple[str, int]]:
    def parts(prefix: str, value: Any) -> list[tuple[str, int]]:
        return [(join_keys(prefix, keys), leaf) for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]]

    if key == "fun":
        return parts("self", skeleton)
    if key == "first":
        return parts(names[0] if names else "arg0", skeleton)
    rest, keywords = skeleton
    found: list[tuple[str, int]] = []
    for position, value in enumerate(rest, start=1):
        found += parts(names[position] if position < len(names) else f"arg{position}", value)
    for name in sorted(keywords):
        found += parts(name, keywords[name])
    return found


def equinox_result_paths(out: Any) -> list[str]:
    """Paths of the flat results of `equinox.filter_jit`: a marker of its own, then what the user returned."""
    marker, dynamic, _ = out
    user = [join_keys("", keys) for keys, _ in jax.tree_util.tree_flatten_with_path(dynamic)[0]]
    return ["equinox_marker"] * len(jax.tree.leaves(marker)) + [path or RESULT for path in user]


def is_nnx_states(value: Any) -> bool:
    """Whether `value` is a Flax NNX module in the flat form in which `nnx.jit` passes it."""
    return type(value).__name__ == "NodeStates" and is_nnx(value)


def nnx_paths(value: Any) -> list[str]:
    """Paths of the leaves of a flat NNX module, read off its graph definition: `layers/0/kernel`."""
    count = len(jax.tree.leaves(value.states))
    paths = _graph_paths(value._graphdef) if value._graphdef is not None else []
    if len(paths) == count:
        return paths
    # Split by the user's filters: each part is then a mapping that has its own paths.
    return [join_keys("", keys) for keys, _ in jax.tree_util.tree_flatten_with_path(value.states)[0]]


def _graph_paths(graph: Any) -> list[str]:
    nodes, attributes = iter(graph.nodes), iter(graph.attributes)
    paths: list[str] = []

    def visit(prefix: tuple[str, ...]) -> None:
        node = next(nodes)
        if type(node).__name__ == "VariableDef":
            paths.append("/".join(prefix))
        for _ in range(getattr(node, "num_attributes", 0)):
            key, attribute = next(attributes)
            if type(attribute).__name__ == "NodeAttr":
                visit((*prefix, str(key)))
            elif type(attribute).__name__ == "ArrayAttr":
                paths.append("/".join((*prefix, str(key))))

    if graph.nodes:
        visit(())
    return paths


def nnx_result_paths(fun: Any, out: Any) -> list[str]:
    """Paths of the flat results of `nnx.jit`: updated modules under their parameter's name, then the returned value."""
    names = [p.name for p in signature.parameters.values()] if (signature := signature_of(unwrap(fun))) else []
    if len(out) != 3:
        return leaf_paths("", out)
    positional, keywords, returned = out
    paths: list[str] = []
    for position, value in enumerate(positional):
        paths += leaf_paths(names[position] if position < len(names) else f"arg{position}", value)
    for name in sorted(keywords or {}):
        paths += leaf_paths(name, keywords[name])
    return paths + leaf_paths("", returned)


def leaf_paths(prefix: str, value: Any) -> list[str]:
    """`prefix` joined with the path of each leaf of `value`; a lone leaf without prefix is called `result`."""
    found: list[str] = []
    for keys, leaf in jax.tree_util.tree_flatten_with_path(value, is_leaf=is_nnx_states)[0]:
        path = join_keys(prefix, keys)
        if is_nnx_states(leaf):
            found.extend("/".join(filter(None, [path, inner])) for inner in nnx_paths(leaf))
        else:
            found.append(path or RESULT)
    return found


def join_keys(prefix: str, keys: tuple[Any, ...]) -> str:
    """JAX's key path as text: dict keys, attribute names and indices joined by `/`."""
    return "/".join([*filter(None, [prefix]), *(_key(key) for key in keys)])


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
