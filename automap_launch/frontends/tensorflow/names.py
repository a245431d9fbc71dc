"""Paths of a TensorFlow step's flat arguments and results, in the user's own words."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from automap_launch.frontends.libraries import unwrap
from automap_launch.frontends.tensorflow import tf_internals

# `tf.Variable` is called this when it is given no name.
_NAMELESS = "Variable"
_DEPTH = 8
# Packages whose objects are not searched for variables: functions and modules of Python, and the libraries.
_FOREIGN = frozenset({"builtins", "functools", "keras", "numpy", "tensorflow", "types"})


def variable_paths(variables: Sequence[Any], function: Any) -> list[str]:
    """One path a variable: its own name (Keras gives each a full one), or the attributes by which the step reaches it
    where it has none.

    Args:
      function: the step's Python function; what it refers to is searched for variables without a name.
    """
    reached: dict[int, str] = {}
    if any(tf_internals.full_name(variable) == _NAMELESS for variable in variables):
        reached = {id(tf_internals.raw_handle(v)): path for path, v in _reachable(function)}
    paths = []
    for variable in variables:
        name = tf_internals.full_name(variable)
        if name == _NAMELESS:
            name = reached.get(id(tf_internals.raw_handle(variable)), name)
        paths.append(name)
    return unique(paths)


def result_paths(concrete: Any) -> list[str]:
    """One path a flat result: its place in the returned value; a lone result is called `result`."""
    places: dict[int, str] = {}
    packed = tf_internals.pack_results(concrete, concrete.outputs)
    for keys, leaf in _with_keys(packed):
        places.setdefault(id(leaf), "/".join(keys) or "result")
    return unique([places.get(id(output), f"result{i}") for i, output in enumerate(concrete.outputs)])


def unique(paths: Sequence[str]) -> list[str]:
    """The paths, a counter after those that come twice."""
    seen: dict[str, int] = {}
    found = []
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        found.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return found


def _with_keys(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _with_keys(value[key], (*keys, str(key)))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key in value._fields:
            yield from _with_keys(getattr(value, key), (*keys, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _with_keys(item, (*keys, str(index)))
    else:
        yield keys, value


def _reachable(function: Any) -> Iterator[tuple[str, Any]]:
    """Variables that a function reaches through its object, its closure and the globals that it names."""
    roots: dict[str, Any] = {}
    bound = inspect.unwrap(function, stop=lambda f: hasattr(f, "__self__"))
    owner = getattr(bound, "__self__", None)
    owner = getattr(owner, "target", owner)  # TensorFlow binds methods through a holder of a weak reference
    if owner is not None:
        roots[""] = owner
    plain = unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
            roots.setdefault(name, _content(cell))
        for name in code.co_names:
            if name in plain.__globals__:
                roots.setdefault(name, plain.__globals__[name])
    seen: set[int] = set()
    for name, value in roots.items():
        yield from _variables_in(name, value, seen, _DEPTH)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _variables_in(path: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    if isinstance(value, tf_internals.Variable):
        yield path or _NAMELESS, value
        return
    if isinstance(value, Mapping):
        children: Iterator[tuple[str, Any]] = ((str(k), v) for k, v in value.items())
    elif isinstance(value, (list, tuple)):
        children = ((str(k), v) for k, v in enumerate(value))
    elif isinstance(value, tf.Module) or _is_users(value):
        # TensorFlow keeps an account of its own in attributes that begin like this.
        children = ((k, v) for k, v in vars(value).items() if not k.startswith("_self_"))
    else:
        return
    for key, child in list(children):
        yield from _variables_in(f"{path}/{key}".strip("/"), child, seen, depth - 1)


def _is_users(value: Any) -> bool:
    """Whether it is an ordinary object of a class of the script's own (a trainer that holds variables)."""
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and package not in _FOREIGN and not isinstance(value, (type, types.ModuleType))
