"""The import hook that lets Trax 1.4.1 run unedited on today's JAX. A script that does not import Trax pays nothing.

Each of Trax's modules is given an `__import__` of its own (see `_TraxImporter`), and a few are changed once they are
imported (`fixes`). Nothing outside Trax is touched.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import random
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from automap_launch.tested_versions import require_tested

if TYPE_CHECKING:
    from automap_launch.frontends.trax.stand_ins import StandIns

_NAME = "trax"


def install(writes: bool = True, refusing: bool = True) -> None:
    """Prepares for a script that imports Trax. Call once, before the script starts.

    Args:
      writes: whether this process is the one whose files count: not while a step is captured, nor above rank 0.
      refusing: whether what no plan can train is refused (`refusals`); off for Trax's own tests.
    """
    sys.meta_path.insert(0, _Finder(writes, refusing))


def globals_of(module: str) -> dict[str, Any]:
    """What the globals of `module` must hold before it runs as `__main__` (`-m trax.trainer`)."""
    if not _is_traxs(module):
        return {}
    finder = next((f for f in sys.meta_path if isinstance(f, _Finder)), None)
    return {} if finder is None else {"__builtins__": finder.compatibility().builtins}


class _Finder(importlib.abc.MetaPathFinder):
    """Takes part in the import of Trax's modules, and of TensorFlow once Trax has chosen a seed for it."""

    def __init__(self, writes: bool, refusing: bool) -> None:
        self._options = (writes, refusing)
        self._compatibility: _Compatibility | None = None
        self._looking = False
        self._random_state = random.getstate()

    def compatibility(self) -> _Compatibility:
        """Made when the first of Trax's modules is imported: it imports JAX."""
        if self._compatibility is None:
            check_version()
            if random.getstate() == self._random_state:
                # Every layer draws a number which may end up in the program: another one in each process and run would
                # make another program each time. A script that has seeded `random` itself is left alone.
                random.seed(0)
            self._compatibility = _Compatibility(*self._options)
        return self._compatibility

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        awaited = self._compatibility is not None and fullname in self._compatibility.stand_ins.on_import
        if self._looking or not (awaited or _is_traxs(fullname)):
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.compatibility())
        return spec


class _Loader(importlib.abc.Loader):
    """A loader with something to do before and after the module is executed; all else is the real one's."""

    def __init__(self, real: importlib.abc.Loader, compatibility: _Compatibility) -> None:
        self._real = real
        self._compatibility = compatibility

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._compatibility.prepare(module)
        self._real.exec_module(module)
        self._compatibility.finish(module)

    def __getattr__(self, name: str) -> Any:
        if name == "_real":
            raise AttributeError(name)
        return getattr(self._real, name)


class _Compatibility:
    """What is done to Trax's modules in this process.

    Attributes:
      builtins: `__builtins__` of Trax's modules, with their own `__import__`.
    """

    def __init__(self, writes: bool, refusing: bool) -> None:
        # Imported here because they import JAX, which a script may have to prepare first.
        from automap_launch.frontends.trax import fixes, refusals
        from automap_launch.frontends.trax.stand_ins import StandIns

        self.stand_ins = StandIns(writes)
        self._changes = [fixes.changes(writes), refusals.changes() if refusing else {}]
        self.builtins = {**vars(builtins), "__import__": _TraxImporter(self.stand_ins)}

    def prepare(self, module: ModuleType) -> None:
        if _is_traxs(module.__name__):
            module.__dict__["__builtins__"] = self.builtins

    def finish(self, module: ModuleType) -> None:
        if due := self.stand_ins.on_import.get(module.__name__):
            due(module)
        for changes in self._changes:
            if change := changes.get(module.__name__):
                change(module)


class _TraxImporter:
    """`__import__` as Trax's modules call it: some modules are stood in for.

    `import a.b` asks for `a`, `import a.b as x` and `from a.b import c` then for attributes, as in plain Python.
    """

    def __init__(self, stand_ins: StandIns) -> None:
        self._all = stand_ins.modules
        self._of_importer = stand_ins.of_importer

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        wanted = name if fromlist or level else name.partition(".")[0]
        importer = str((globals or {}).get("__name__"))
        found = self._of_importer.get((importer, wanted), self._all.get(wanted)) if level == 0 else None
        return builtins.__import__(name, globals, locals, fromlist or (), level) if found is None else found


def check_version() -> None:
    """Raises:
    ConfigError: another Trax than the tested one is installed.
    """
    require_tested(_NAME, importlib.metadata.version(_NAME))


def _is_traxs(module: str) -> bool:
    return module == _NAME or module.startswith(f"{_NAME}.")
