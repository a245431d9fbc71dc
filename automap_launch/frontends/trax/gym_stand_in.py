"""A stand-in for `gym`, which `trax.supervised` imports by way of its reinforcement learning callbacks."""

from __future__ import annotations

import importlib.util
import types
from typing import Any

_SPACES = ("Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple")


def gym_stand_in() -> types.ModuleType | None:
    """`gym` with classes that nothing is an instance of; None where gym is installed.

    Trax compares spaces with these classes and derives nothing from them. Whatever else is asked of it raises an
    ImportError that says what is missing.
    """
    if importlib.util.find_spec("gym") is not None:
        return None
    spaces = types.SimpleNamespace(**{name: type(name, (), {}) for name in _SPACES})
    return _Absent("gym", {"spaces": spaces})


class _Absent(types.ModuleType):
    def __init__(self, name: str, known: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        name = self.__name__
        raise ImportError(f"Trax needs {name}.{attribute} here, and {name} is not installed", name=name)
