"""`jax.jit` replaced before the script imports anything, so that every call of a jitted function passes by us.

Libraries take `jax.jit` by name while they are imported; `install` therefore comes first. The jits inside `jax.numpy`
do not come from the public name and stay as they are.
"""

from __future__ import annotations

import functools
import importlib
import types
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax

from automap_launch.frontends import jax_internals
from automap_launch.frontends.ahead_of_time import HookedLowered
from automap_launch.frontends.libraries import definition_of, identity_of
from automap_launch.train_step import StepIdentity

Handler = Callable[["HookedFunction", tuple[Any, ...], dict[str, Any]], Any]

REAL = "__automap_real__"
# Of `jax.pmap` and of `pjit`; `jax.jit` takes all but the function by name.
_POSITIONAL = {"pmap": ("axis_name",), "jit": ("in_shardings", "out_shardings", "static_argnums", "static_argnames")}

_handler: Handler | None = None


class HookedFunction:
    """A jitted function that hands its top-level calls to the installed handler.

    It stands in for what `jax.jit` returns: `trace`, `eval_shape`, `clear_cache` and every other attribute
    are the jitted function's own. Called while JAX traces something else, it is that function and nothing more.

    Attributes:
      fun: what was given to `jax.jit`.
      jitted: what the real `jax.jit` made of it.
      options: the keyword arguments of `jax.jit`.
      kind: `jit` or `pmap`.
      calls: number of top-level calls so far.
      cleared: how often the user cleared its cache: what it closes over may have changed.
    """

    def __init__(self, fun: Callable[..., Any], jitted: Any, options: dict[str, Any], kind: Literal["jit", "pmap"]):
        functools.update_wrapper(self, fun, updated=())
        self.__wrapped__ = fun
        self.fun = fun
        self.jitted = jitted
        self.options = options
        self.kind = kind
        self.calls = 0
        self.cleared = 0
        self._identity: StepIdentity | None = None

    @property
    def identity(self) -> StepIdentity:
        """Name and place of the user's function. Known for sure once it has been called (see `libraries`)."""
        return self._identity or identity_of(self.fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _handler is None or not jax_internals.at_top_level():
            return self.jitted(*args, **kwargs)
        self.calls += 1
        if self._identity is None:
            self._identity = identity_of(definition_of(self.fun, args))
        return _handler(self, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of the jitted function; what is compiled from it passes by the handler as well."""
        if _handler is None or self.kind != "jit" or not jax_internals.at_top_level():
            return self.jitted.lower(*args, **kwargs)
        numbers, names = jax_internals.static_arguments(self.jitted)
        statics = {i: args[i] for i in numbers if i < len(args)}, {n: kwargs[n] for n in names if n in kwargs}
        return HookedLowered(self, lambda: self.jitted.lower(*args, **kwargs), statics)

    def clear_cache(self) -> None:
        """As of the jitted function; what stands in for it is made anew as well."""
        self.cleared += 1
        self.jitted.clear_cache()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        # Reached for what `__init__` did not set; `jitted` itself is absent while a copy is being built.
        if name == "jitted":
            raise AttributeError(name)
        return getattr(self.jitted, name)

    def __repr__(self) -> str:
        return repr(self.jitted)


def install(handler: Handler) -> Callable[[], None]:
    """Replaces `jax.jit`, its older name `pjit`, and `jax.pmap`; `handler(function, args, kwargs)` answers top-level
    calls.

    Returns:
      A function that takes the replacement back. Functions made in the meantime then run plainly.
    """
    global _handler
    pjit = importlib.import_module("jax.experimental.pjit")
    places: list[tuple[Any, str, Literal["jit", "pmap"]]] = [
        (jax, "jit", "jit"),
        (pjit, "pjit", "jit"),
        (jax, "pmap", "pmap"),
    ]
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of pjit, which is not used here
        before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for (module, name, kind), (_, _, real) in zip(places, before, strict=True):
        setattr(module, name, _hooked(real, kind))
    _handler = handler

    def uninstall() -> None:
        global _handler
        _handler = None
        for module, name, original in before:
            setattr(module, name, original)

    return uninstall


def real_jit() -> Any:
    """JAX's own `jax.jit`, whether or not the hooks are in place."""
    return getattr(jax.jit, REAL, jax.jit)


def _hooked(real: Callable[..., Any], kind: Literal["jit", "pmap"]) -> Callable[..., Any]:
    @functools.wraps(real)
    def replacement(*args: Any, **options: Any) -> Any:
        fun = args[0] if args else options.pop("fun", None)
        if fun is None:
            return lambda fun: replacement(fun, **options)
        options.update(zip(_POSITIONAL[kind], args[1:], strict=False))
        inner = fun.jitted if isinstance(fun, HookedFunction) else fun
        return HookedFunction(fun, real(inner, **options), options, kind)

    setattr(replacement, REAL, real)
    return replacement
