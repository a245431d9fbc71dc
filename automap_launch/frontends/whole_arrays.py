"""An array that lies in a plan's sharding, seen by the script as if it lay whole on its one device.

Reading its value gathers it, which is a collective where it spans processes: since every rank runs the same script, all
read in the same order. JAX itself, and libraries that save checkpoints collectively, see where it really lies.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax

from automap_launch.frontends import jax_internals
from automap_launch.frontends.jit_hook import real_jit
from automap_launch.frontends.one_device import asked_by_insider

# Reading these takes the whole array on one device, whoever asks: an array in several parts has none of them.
_ON_ONE_DEVICE = ("__dlpack__", "__dlpack_device__")
# These tell the script of its one device.
_METHODS = ("addressable_data", "unsafe_buffer_pointer")
_PROPERTIES = ("addressable_shards", "global_shards")


class LikeArray(jax.sharding.SingleDeviceSharding):  # type: ignore[misc]  # JAX is untyped
    """The one device, and where the array lies in truth: what is put "like" it goes there, if it has such a form."""

    real: jax.sharding.Sharding

    def place_of(self, shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
        """The real sharding, where an array of `shape` can lie in it."""
        try:
            self.real.check_compatible_aval(shape)  # its rank
            self.real.shard_shape(shape)  # its sizes
        except ValueError:
            return None
        return self.real


def show_whole_arrays(here: Any) -> Callable[[], None]:
    """Makes arrays that span devices appear as lying on the device `here` to the script.

    Returns:
      A function that takes it back.
    """
    array_type = type(jax.numpy.zeros(()))
    replaced: dict[str, Any] = {
        **{name: _gathered(getattr(array_type, name), here) for name in _ON_ONE_DEVICE},
        **{name: _for_script(getattr(array_type, name), here) for name in _METHODS},
        **{name: property(_for_script(getattr(array_type, name).fget, here)) for name in _PROPERTIES},
        "sharding": property(_sharding(array_type.sharding.fget, here)),
        "devices": _said(array_type.devices, lambda array: {here}),
        "device": property(_said(array_type.device.fget, lambda array: here)),
        "is_fully_replicated": property(_said(array_type.is_fully_replicated.fget, lambda array: True)),
        "is_fully_addressable": property(_said(array_type.is_fully_addressable.fget, lambda array: True)),
        "on_device_size_in_bytes": _said(array_type.on_device_size_in_bytes, lambda array: array.nbytes),
    }
    originals = {name: array_type.__dict__[name] for name in replaced}
    for name, replacement in replaced.items():
        setattr(array_type, name, replacement)

    def take_back() -> None:
        for name, original in originals.items():
            setattr(array_type, name, original)

    return take_back


def read_elsewhere_with(read: Callable[[jax.Array], jax.Array | None]) -> None:
    """How to read arrays that lie on some processes alone (stages of a pipeline).

    Args:
      read: gives the whole array on every process, None where every process has a part of it already.
    """
    global _elsewhere
    _elsewhere = read


_elsewhere: Callable[[jax.Array], jax.Array | None] = lambda array: None  # noqa: E731


def whole(array: jax.Array) -> jax.Array:
    """`array` with its value on every process; a collective where it is not there yet."""
    with jax_internals.evaluating():
        found = _elsewhere(array)
    if found is not None:
        return found
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    replicated = jax.sharding.NamedSharding(array.sharding.mesh, jax.sharding.PartitionSpec())
    with jax_internals.evaluating():
        return _replicate(replicated)(array)


@functools.lru_cache(maxsize=64)
def _replicate(sharding: Any) -> Callable[[jax.Array], jax.Array]:
    replicate: Callable[[jax.Array], jax.Array] = real_jit()(lambda x: x, out_shardings=sharding)
    return replicate


def _on(array: jax.Array, here: Any) -> jax.Array:
    """The whole of `array` on the device `here` of this process."""
    if not _spans(array):
        return array
    gathered = whole(array)
    with jax_internals.evaluating():
        if gathered.is_fully_replicated:
            return next(shard.data for shard in gathered.addressable_shards if shard.device == here)
        return jax.device_put(gathered, here)


def _spans(array: jax.Array) -> bool:
    return len(array.sharding.device_set) > 1


def _gathered(original: Callable[..., Any], here: Any) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def read(self: jax.Array, *args: Any, **kwargs: Any) -> Any:
        return original(_on(self, here), *args, **kwargs)

    return read


def _for_script(original: Callable[..., Any], here: Any) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def read(self: jax.Array, *args: Any, **kwargs: Any) -> Any:
        seen = self if asked_by_insider(sys._getframe(1)) else _on(self, here)
        return original(seen, *args, **kwargs)

    return read


def _said(original: Callable[..., Any], said: Callable[[jax.Array], Any]) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def answer(self: jax.Array) -> Any:
        return original(self) if asked_by_insider(sys._getframe(1)) or not _spans(self) else said(self)

    return answer


def _sharding(original: Callable[..., Any], here: Any) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def sharding(self: jax.Array) -> Any:
        real = original(self)
        if len(real.device_set) == 1 or asked_by_insider(sys._getframe(1)):
            return real
        like = LikeArray(here)
        like.real = real
        return like

    return sharding
