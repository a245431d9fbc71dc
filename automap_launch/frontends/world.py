"""One world: a script on any rank sees one device, and reads any array as if it lay there.

What JAX tells of devices and processes depends on who asks: the script and the libraries it uses see one device in
one process; JAX itself, and libraries that save checkpoints collectively, see what there is.

An array over several processes is read by gathering it first, which is a collective: since every rank runs the same
script, all read in the same order. Only public names of JAX are replaced.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import multihost_utils

from automap_launch.frontends import jax_internals
from automap_launch.frontends.buffers import hide_buffers
from automap_launch.frontends.deferred import materialize
from automap_launch.frontends.jax_settings import keep_devices
from automap_launch.frontends.one_device import asked_by_insider, ignore_placements, says_nothing
from automap_launch.frontends.whole_arrays import LikeArray, show_whole_arrays, whole

_READS = (
    "__array__",
    "__bool__",
    "__complex__",
    "__dlpack__",
    "__float__",
    "__format__",
    "__hex__",
    "__index__",
    "__int__",
    "__iter__",
    "__oct__",
    "__reduce__",
    "__repr__",
    "__str__",
    "item",
    "tobytes",
    "tolist",
)

# Through these libraries talk from process to process (Orbax, before it writes).
_COLLECTIVES = ("broadcast_one_to_all", "process_allgather")


def enter_single_world() -> Callable[[], None]:
    """Makes the rest of this process see one device. Call it after `jax.distributed.initialize`.

    Returns:
      A function that brings back the real world.
    """
    here = jax.local_devices()[0]
    replacements: dict[str, Callable[..., Any]] = {
        "device_count": _for_outsiders(jax.device_count, lambda *_, **__: 1),
        "local_device_count": _for_outsiders(jax.local_device_count, lambda *_, **__: 1),
        "process_count": _for_outsiders(jax.process_count, lambda *_, **__: 1),
        "process_index": _for_outsiders(jax.process_index, lambda *_, **__: 0),
        "devices": _for_outsiders(jax.devices, _one_of(jax.local_devices, here)),
        "local_devices": _for_outsiders(jax.local_devices, _one_of(jax.local_devices, here)),
        "device_put": _for_outsiders(jax.device_put, _unpinned_device_put(jax.device_put, here.platform)),
        "make_mesh": _for_outsiders(jax.make_mesh, functools.partial(_make_mesh, jax.make_mesh, here)),
    }
    export = importlib.import_module("jax.export")
    originals = [(jax, name, getattr(jax, name)) for name in replacements] + [(export, "export", export.export)]
    releases = [ignore_placements(here.platform), show_whole_arrays(here), keep_devices()]
    if jax.process_count() > 1:
        releases.append(read_everywhere())
    for name, replacement in replacements.items():
        setattr(jax, name, replacement)
    setattr(export, "export", _exporting(export.export))  # noqa: B010  # a module that mypy does not know

    def leave() -> None:
        for owner, name, original in originals:
            setattr(owner, name, original)
        for release in reversed(releases):
            release()

    return leave


def read_everywhere() -> Callable[[], None]:
    """Makes the value of an array that spans processes readable on each of them.

    `float(x)`, `np.asarray(x)`, `jax.device_get(x)`, `pickle`, iteration and formatting gather the array first. All
    processes must read the same arrays in the same order.

    Returns:
      A function that takes it back.
    """
    array_type = type(jax.numpy.zeros(()))
    originals = [(array_type, name, getattr(array_type, name)) for name in _READS if hasattr(array_type, name)]
    collectives = [(multihost_utils, name, getattr(multihost_utils, name)) for name in _COLLECTIVES]
    for owner, name, original in originals:
        setattr(owner, name, _gathering(original))
    for owner, name, original in collectives:
        setattr(owner, name, _evaluating(original))
    give_back = hide_buffers(array_type)

    def release() -> None:
        give_back()
        for owner, name, original in (*originals, *collectives):
            setattr(owner, name, original)

    return release


def _gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: jax.Array, *args: Any, **kwargs: Any) -> Any:
        return original(whole(self), *args, **kwargs)

    return read


def _evaluating(original: Callable[..., Any]) -> Callable[..., Any]:
    """These set a mesh, which JAX allows only outside of any trace: also while state is still being described."""

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        with jax_internals.evaluating():
            return original(*args, **kwargs)

    return evaluate


def _for_outsiders(real: Callable[..., Any], single: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def answer(*args: Any, **kwargs: Any) -> Any:
        return (real if asked_by_insider(sys._getframe(1)) else single)(*args, **kwargs)

    return answer


def _one_of(local_devices: Callable[..., list[Any]], here: Any) -> Callable[..., list[Any]]:
    """`jax.devices` of one world: the one device, or the first of another platform that was asked for by name."""

    def devices(*args: Any, **kwargs: Any) -> list[Any]:
        backend = kwargs.get("backend", args[-1] if args and isinstance(args[-1], str) else None)
        return [here] if backend is None else local_devices(backend=backend)[:1]

    return devices


def _unpinned_device_put(real: Callable[..., Any], platform: str) -> Callable[..., Any]:
    """`jax.device_put` onto the one device means: into the world, wherever the plan wants it.

    A value put there stays free to be combined with arrays over the whole mesh, and those stay where they are.
    """

    def device_put(x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if device is not None and not says_nothing(device, platform):
            return real(x, device, *args, **kwargs)
        leaves, tree = jax.tree.flatten(x)
        away = [index for index, leaf in enumerate(leaves) if not _spans_devices(leaf)]
        for index, value in zip(away, real([leaves[i] for i in away], None, *args, **kwargs), strict=True):
            leaves[index] = _put_like(value, device)
        return jax.tree.unflatten(tree, leaves)

    return device_put


def _put_like(value: Any, device: Any) -> Any:
    """`value`, where it is put like another array, in that one's real sharding, if it has a form for it."""
    if not isinstance(device, LikeArray) or isinstance(value, jax.core.Tracer):
        return value
    place = device.place_of(value.shape)
    return value if place is None else materialize([value], [place])[0]


def _spans_devices(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and len(leaf.sharding.device_set) > 1


def _exporting(real: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.export.export` for the one device, whatever the arrays that describe the arguments lie on."""

    @functools.wraps(real)
    def export(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        exported = real(*args, **kwargs)

        @functools.wraps(exported)
        def describe(*arguments: Any, **named: Any) -> Any:
            arguments, named = jax.tree.map(_without_place, (arguments, named))
            return exported(*arguments, **named)

        return describe

    return export


def _without_place(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if _spans_devices(leaf) else leaf


def _make_mesh(real: Callable[..., Any], here: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("devices") is None:
        kwargs["devices"] = [here]
    return real(*args, **kwargs)
