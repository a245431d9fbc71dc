"""Something done the moment a package has been imported: a front end takes its place in a library only if the script
uses that library.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence


def when_imported(name: str, then: Callable[[types.ModuleType], None]) -> Callable[[], None]:
    """Calls `then(module)` once the module `name` is loaded, before the statement that imports it goes on; at once if
    it is loaded already.

    Returns:
      A function that takes it back.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
        then(loaded)
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(importlib.abc.MetaPathFinder):
    """Has the other finders find the module, and its own loader load it."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.then)
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """A loader that tells when it is done. All else is the real loader's, which the module is left with."""

    def __init__(self, real: importlib.abc.Loader, then: Callable[[types.ModuleType], None]) -> None:
        self.real = real
        self.then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self.real
        module.__loader__ = self.real
        self.real.exec_module(module)
        self.then(module)
