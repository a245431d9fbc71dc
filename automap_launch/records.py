"""Dataclasses from plain records (parsed YAML or JSON), with errors that name the key.

A file that people edit deserves better than a `TypeError`: every problem says which key, what was got and what was
expected. Only what the files of this project hold is supported: dataclasses, scalars, `dict[str, X]`, tuples,
`Literal` and `X | None`.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal, TypeVar

T = TypeVar("T")

_KIND = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


class RecordError(ValueError):
    """A record does not have the form it must have; the message names the key."""


def read_record(kind: type[T], record: Any, where: str = "") -> T:
    """Builds the dataclass `kind` from a plain record.

    Args:
      where: the key path of `record` in its file, for messages; empty at the top.

    Raises:
      RecordError: an unknown or missing key, a value of the wrong type, or one that `kind` itself refuses.
    """
    built = _read(kind, record, where)
    return typing.cast(T, built)


def describe(value: Any) -> str:
    """A value as messages show it: short, with its kind."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown_key(key: str, valid: list[str], where: str) -> RecordError:
    """The error for a key that `where` does not have."""
    near = difflib.get_close_matches(key, valid, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    place = f"`{where}`" if where else "it"
    return RecordError(f"unknown field `{_join(where, key)}`: {guess}{place} has the fields {', '.join(valid)}")


def _read(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise RecordError(f"`{where}` is {describe(value)}: expected one of {', '.join(map(str, args))}")
        return value
    if origin is dict:
        return {str(k): _read(args[1], v, _join(where, str(k))) for k, v in _expect(dict, value, where).items()}
    if origin is tuple:
        return _read_tuple(args, value, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, where)
    return _read_scalar(kind, value, where)


def _read_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    assert len(rest) == 1, "records hold no unions but `X | None`"
    return _read(rest[0], value, where)


def _read_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _expect(list, list(value) if isinstance(value, tuple) else value, where)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if len(items) != len(args):
        raise RecordError(f"`{where}` has {len(items)} items: expected {len(args)}")
    return tuple(_read(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, items, strict=True)))


def _read_dataclass(kind: type[Any], value: Any, where: str) -> Any:
    record = _expect(dict, value, where)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    for key in record:
        if key not in fields:
            raise unknown_key(str(key), list(fields), where)
    hints = typing.get_type_hints(kind)
    values = {}
    for name, f in fields.items():
        if name in record:
            values[name] = _read(hints[name], record[name], _join(where, name))
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise RecordError(f"`{_join(where, name)}` is missing")
    try:
        return kind(**values)
    except RecordError:
        raise
    except ValueError as error:
        place = f"`{where}`: " if where else ""
        raise RecordError(f"{place}{error}") from error


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise _wrong_type(_KIND[kind], value, where)
    return float(value) if kind is float else value


def _expect(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong_type("a mapping of keys to values" if kind is dict else "a list", value, where)
    return value


def _wrong_type(expected: str, value: Any, where: str) -> RecordError:
    place = f"`{where}`" if where else "the content"
    got = "null" if value is None else describe(value)
    return RecordError(f"{place} is {got}: expected {expected}")


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
