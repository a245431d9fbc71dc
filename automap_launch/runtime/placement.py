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
            return _reshard(sharding)(leaf)
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
def _reshard(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    moved: Callable[[jax.Array], jax.Array] = jit(lambda x: x, out_shardings=sharding)
    return moved
