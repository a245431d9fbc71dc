"""Puts a value, wherever it comes from, into a sharding, without talking to other processes where that can be.

Numpy values are copied: on CPU JAX would otherwise share the memory, and a data loader that fills the same buffer
again would change a batch that is still to be trained on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from automap_launch.runtime.jax_internals import jit
from automap_launch.runtime.module_function import key_implementation

Materialize = Callable[[Sequence[Any], Sequence[NamedSharding]], Sequence[jax.Array]]


def is_deferred(leaf: Any) -> bool:
    """Whether `leaf` stands for an array that is still to be created (only such tracers reach a running step)."""
    return isinstance(leaf, jax.core.Tracer)


def place(leaf: Any, sharding: NamedSharding, dtype: str) -> Any:
    """`leaf` (numpy array, Python scalar, JAX array placed anyhow) as an array of `dtype` in `sharding`.

    Every process calls it with the same value. Only an array that already spans processes is moved by a collective.
    On a mesh of one device a numpy array is returned as it is: `jax.jit` takes it from there, and copies it.

    Raises:
      TypeError: a typed PRNG key was expected.
    """
    if isinstance(leaf, jax.Array):
        if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        if not leaf.is_fully_addressable:
            return reshard(sharding)(leaf)
        if sharding.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        if key_implementation(str(leaf.dtype)):
            return _place_key(leaf, sharding, dtype)
        return _place_local(leaf, sharding)
    if key_implementation(dtype):
        raise TypeError(f"a PRNG key of dtype {dtype} was expected, got {type(leaf).__name__}")
    if sharding.num_devices == 1:
        return np.asarray(leaf, dtype=np.dtype(dtype))
    value = np.array(leaf, dtype=np.dtype(dtype))
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def place_exactly(leaf: Any, sharding: NamedSharding, dtype: str) -> Any:
    """`place`, with the result in that very sharding also where an equivalent one would do: by another one a stage's
    functions would be compiled again. A numpy array is copied once, not at each use.

    A process that has no device of `sharding` gets an array without shards.
    """
    if not sharding.has_addressable_devices:
        shape = np.shape(leaf)
        kind = leaf.dtype if isinstance(leaf, jax.Array) else np.dtype(dtype)
        return _without_shards(tuple(shape), sharding, kind)
    found = place(leaf, sharding, dtype)
    if getattr(found, "sharding", None) == sharding:
        return found
    return jax.device_put(found if isinstance(found, jax.Array) else np.array(found), sharding)


def _without_shards(shape: tuple[int, ...], sharding: NamedSharding, kind: Any) -> jax.Array:
    if not jax.dtypes.issubdtype(kind, jax.dtypes.prng_key):
        return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=kind)
    implementation = key_implementation(str(kind))
    words = jax.random.key_data(jax.random.key(0, impl=implementation)).shape
    data = jax.make_array_from_single_device_arrays((*shape, *words), sharding, [], dtype=np.dtype(np.uint32))
    return jax.random.wrap_key_data(data, impl=implementation)


def _place_local(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    """A process's own array into a sharding over several processes: each cuts out its devices' shards."""
    pieces: dict[tuple[tuple[int | None, int | None], ...], Any] = {}
    shards = []
    for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
        cut = tuple((s.start, s.stop) for s in index or ())
        if cut not in pieces:
            pieces[cut] = leaf if all(bound == (None, None) for bound in cut) else leaf[index]
        shards.append(jax.device_put(pieces[cut], device))
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)


def _place_key(leaf: jax.Array, sharding: NamedSharding, dtype: str) -> jax.Array:
    data = _place_local(jax.random.key_data(leaf), sharding)
    return jax.random.wrap_key_data(data, impl=key_implementation(dtype))


@functools.lru_cache(maxsize=1024)
def reshard(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """What moves an array on the devices of `sharding` into it; a collective where they span processes."""
    moved: Callable[[jax.Array], jax.Array] = jit(lambda x: x, out_shardings=sharding)
    return moved
