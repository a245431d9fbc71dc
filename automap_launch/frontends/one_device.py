"""Placements that a script writes down for its one device: they say nothing, and are not passed on to JAX.

A script may make a mesh of its one device, and give shardings on it to `jax.jit`, `device_put` or a constraint. Where
arrays lie is the plan's to say, on another mesh, and JAX refuses to mix the two.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax

from automap_launch.errors import CaptureError
from automap_launch.frontends.source_lines import current_line

# Top-level packages that see the real cluster.
INSIDERS = frozenset({"jax", "jaxlib", "orbax", "tensorstore", "automap_launch"})

_JIT_PLACES = ("in_shardings", "out_shardings", "device")


def asked_by_insider(frame: FrameType) -> bool:
    """Whether the code that runs in `frame` sees the real cluster."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in INSIDERS


def on_one_device(place: Any, platform: str) -> bool:
    """Whether a device or a sharding is no more than the one device of `platform`, in its ordinary memory."""
    if isinstance(place, jax.Device):
        return bool(place.platform == platform)
    if isinstance(place, jax.sharding.Sharding):
        ours = all(device.platform == platform for device in place.device_set)
        return len(place.device_set) == 1 and ours and place.memory_kind in (None, "device")
    return False


def says_nothing(places: Any, platform: str) -> bool:
    """Whether every leaf of a tree of places is none, a spec (of the one mesh), or no more than the one device."""
    leaves = jax.tree.leaves(places, is_leaf=lambda leaf: leaf is None)
    return all(
        leaf is None or isinstance(leaf, jax.sharding.PartitionSpec) or on_one_device(leaf, platform) for leaf in leaves
    )


def ignore_placements(platform: str) -> Callable[[], None]:
    """From now on, what is said of the one device of `platform` in jits, constraints and meshes is left out.

    `jax.shard_map` over it is refused where it is called: its body is a program for each of several devices.

    Returns:
      A function that takes it back.
    """
    empty = functools.partial(says_nothing, platform=platform)
    mesh = jax.sharding.Mesh
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of older names, not used here
        replaced: list[tuple[Any, str, Any]] = [
            *((module, name, _without_places(getattr(module, name), empty)) for module, name in _jits()),
            (jax.lax, "with_sharding_constraint", _unconstrained(jax.lax.with_sharding_constraint, empty)),
            *((module, "reshard", _unconstrained(jax.reshard, empty)) for module in (jax, jax.sharding)),
            *((module, "set_mesh", _without_mesh(jax.set_mesh)) for module in (jax, jax.sharding)),
            *((module, name, _refused(getattr(module, name))) for module, name in _shard_maps()),
            (mesh, "__enter__", _unless_one_device(mesh.__enter__, lambda mesh: mesh)),
            (mesh, "__exit__", _unless_one_device(mesh.__exit__, lambda *_: None)),
        ]
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, replacement in replaced:
        setattr(owner, name, replacement)

    def take_back() -> None:
        for owner, name, original in originals:
            setattr(owner, name, original)

    return take_back


def _without_places(real: Callable[..., Any], empty: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(real)  # the marks of the jit hook are kept, too
    def jit(*args: Any, **options: Any) -> Any:
        options.update(zip(_JIT_PLACES, args[1:], strict=False))  # pjit takes them by position
        if not asked_by_insider(sys._getframe(1)):
            options = {n: value for n, value in options.items() if n not in _JIT_PLACES or not empty(value)}
        return real(*args[:1], **options)

    return jit


def _unconstrained(real: Callable[..., Any], empty: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(real)
    def constrain(x: Any, *args: Any, **kwargs: Any) -> Any:
        places = (*args, *kwargs.values())
        if places and empty(places) and not asked_by_insider(sys._getframe(1)):
            return x
        return real(x, *args, **kwargs)

    return constrain


class _NoMesh:
    """What `set_mesh` returns for a mesh of one device."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _without_mesh(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real, updated=())
    def set_mesh(mesh: Any) -> Any:
        if asked_by_insider(sys._getframe(1)) or (isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1):
            return real(mesh)
        return _NoMesh()

    return set_mesh


def _unless_one_device(real: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def method(mesh: Any, *args: Any) -> Any:
        inside = asked_by_insider(sys._getframe(1))
        return (real if inside or mesh.size > 1 else otherwise)(mesh, *args)

    return method


def _jits() -> Iterator[tuple[Any, str]]:
    yield jax, "jit"
    yield importlib.import_module("jax.experimental.pjit"), "pjit"


def _shard_maps() -> Iterator[tuple[Any, str]]:
    yield jax, "shard_map"
    yield jax, "smap"
    yield importlib.import_module("jax.experimental.shard_map"), "shard_map"


def _refused(real: Callable[..., Any]) -> Callable[..., Any]:
    """`shard_map` and its like, given a function now or later, as decorators are."""

    @functools.wraps(real)
    def shard_map(f: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        if asked_by_insider(sys._getframe(1)):
            return real(f, *args, **kwargs) if f is not None else real(*args, **kwargs)
        if f is None:
            return functools.partial(shard_map, **kwargs)

        @functools.wraps(f)
        def refuse(*_: Any, **__: Any) -> Any:
            line = current_line()
            raise CaptureError(
                f"the script maps a function over the shards of a mesh (jax.{real.__name__}), and it sees one device",
                hint="call the function itself, as for one device: automap-launch spreads the step over all of them",
                file=line.file if line else None,
                line=line.line if line else None,
            )

        return refuse

    return shard_map
