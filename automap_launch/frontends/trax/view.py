"""A *view*: a package as Trax's own modules see it, with the names added that Trax 1.4.1 expects of it.

Trax 1.4.1 is of 2021. Names that are gone from JAX, NumPy and SciPy are added to views which only Trax's modules are
given; the script and all other libraries keep the packages as they are. A view imports its package when something of
it is used, so Trax comes up without TensorFlow, of which most scripts need nothing but its files.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import Any

# The import system asks modules for these; a view has none of them.
_NOT_FORWARDED = frozenset({"__path__", "__all__", "__wrapped__", "__file__", "__spec__"})


class View(types.ModuleType):
    """A module with `additions`; all other attributes are those of the module `name`, imported when first asked for."""

    def __init__(self, name: str, additions: Mapping[str, Any] | None = None) -> None:
        super().__init__(name)
        self.__dict__.update(additions or {})

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _NOT_FORWARDED:
            raise AttributeError(attribute)
        module = sys.modules.get(self.__name__) or importlib.import_module(self.__name__)
        try:
            return getattr(module, attribute)
        except AttributeError:
            # `from jax import test_util` imports the submodule.
            name = f"{self.__name__}.{attribute}"
            if not hasattr(module, "__path__") or importlib.util.find_spec(name) is None:
                raise
            return importlib.import_module(name)


class Later:
    """What `from MODULE import NAME` would give, imported when it is called or asked for an attribute."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def _get(self) -> Any:
        module, name = self._place
        try:
            return getattr(importlib.import_module(module), name)
        except AttributeError:
            return importlib.import_module(f"{module}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._get()(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._get(), attribute)
