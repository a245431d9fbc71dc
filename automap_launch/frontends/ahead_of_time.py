"""`step.lower(...).compile()`: scripts that compile ahead of time call their step through this as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HookedLowered:
    """Stands in for what `lower` returns; what it compiles to calls the hooked function.

    Args:
      call: the hooked function itself.
      lower: lowers for real, when something of the lowered module is asked for.
      statics: static arguments by position and by name: a compiled function is called without them.
    """

    def __init__(
        self, call: Callable[..., Any], lower: Callable[[], Any], statics: tuple[dict[int, Any], dict[str, Any]]
    ) -> None:
        self._call = call
        self._lower = lower
        self._statics = statics
        self._lowered: Any = None

    def compile(self, *args: Any, **kwargs: Any) -> HookedCompiled:
        """The compiled function; XLA compiles it only if something of the executable is asked for."""
        return HookedCompiled(self._call, lambda: self._real().compile(*args, **kwargs), self._statics)

    def _real(self) -> Any:
        if self._lowered is None:
            self._lowered = self._lower()
        return self._lowered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)


class HookedCompiled:
    """Stands in for a compiled function."""

    def __init__(
        self, call: Callable[..., Any], compile_it: Callable[[], Any], statics: tuple[dict[int, Any], dict[str, Any]]
    ) -> None:
        self._call = call
        self._compile = compile_it
        self._statics = statics
        self._compiled: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        positional, named = self._statics
        whole = list(args)
        for index in sorted(positional):
            whole.insert(index, positional[index])
        return self._call(*whole, **named, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if self._compiled is None:
            self._compiled = self._compile()
        return getattr(self._compiled, name)
