"""The script's own W&B, switched off: while its step is captured, and on every rank but the first.

`WANDB_MODE=disabled` alone does not do: a mode that the script names in `wandb.init` wins over it. So `wandb.init` is
wrapped as soon as the script imports wandb; a script that does not import it pays nothing.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_NAME = "wandb"


def disable_wandb() -> None:
    """Switches the script's W&B off in this process, whatever mode it asks for. Call before the script starts."""
    os.environ["WANDB_MODE"] = "disabled"
    if _NAME in sys.modules:
        _wrap(sys.modules[_NAME])
    else:
        sys.meta_path.insert(0, _Finder())


def _wrap(module: ModuleType) -> None:
    module.init = _disabled(module.init)  # type: ignore[attr-defined]


def _disabled(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def disabled_init(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("settings", None)  # may name a mode, too
        return init(*args, **{**kwargs, "mode": "disabled"})

    return disabled_init


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find wandb, and wraps it once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap(module)
