"""Sections of a step (`split/`) as functions under `jax.jit`, and what sums their results over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from automap_launch.program.batch_analysis import Reduction
from automap_launch.program.program import Value
from automap_launch.runtime import jax_internals
from automap_launch.runtime.module_function import key_implementation
from automap_launch.split.boundary import is_low_precision
from automap_launch.split.emit import Section
from automap_launch.train_step import Argument, Result

# XLA has no collective of booleans in a mapped function, and its CPU compiler ends the process at one of bfloat16.
_REDUCED_AS = {"bool": "int32", "bfloat16": "float32"}


class SectionFunction:
    """A section, to be called under `jax.jit`: values by id in, values by id out."""

    def __init__(self, section: Section, name: str) -> None:
        self.inputs = section.inputs
        self.outputs = section.outputs
        self._module = jax_internals.Module(section.artifact, name)
        _, self._tensors = jax_internals.signature(section.artifact)

    def __call__(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """Raises KeyError when a value that the section reads is missing."""
        results = jax_internals.bind(self._module, self._tensors, [values[v] for v in self.inputs])
        return dict(zip(self.outputs, results, strict=True))


def plain(arguments: Sequence[Argument], leaves: Sequence[Any]) -> list[Any]:
    """Leaves as the module takes them: typed PRNG keys by their words."""
    return [
        jax.random.key_data(leaf) if key_implementation(a.dtype) else leaf
        for a, leaf in zip(arguments, leaves, strict=True)
    ]


def typed(results: Sequence[Result], values: Sequence[Any]) -> list[Any]:
    """Results as the script knows them: PRNG keys typed."""
    out = []
    for result, value in zip(results, values, strict=True):
        implementation = key_implementation(result.dtype)
        out.append(jax.random.wrap_key_data(value, impl=implementation) if implementation else value)
    return out


def accumulator(kind: Value, reduction: Reduction) -> Any:
    """What a reduction over micro-batches begins with. Low-precision sums are held in float32."""
    dtype = jnp.dtype(kind.dtype)
    if reduction == "add":
        return jnp.zeros(kind.shape, jnp.float32 if is_low_precision(kind.dtype) else dtype)
    return jnp.full(kind.shape, _extreme(dtype, lowest=reduction == "max"), dtype)


def accumulate(total: Any, value: Any, reduction: Reduction) -> Any:
    """`total` with one more micro-batch's value."""
    value = value.astype(total.dtype)
    if reduction == "add":
        return total + value
    return jnp.maximum(total, value) if reduction == "max" else jnp.minimum(total, value)


def over_replicas(total: Any, reduction: Reduction, axis: str) -> Any:
    """The reduction over the devices of a mesh axis, within `shard_map`."""
    collective: Callable[..., Any] = {"add": lax.psum, "max": lax.pmax, "min": lax.pmin}[reduction]
    wide = _REDUCED_AS.get(total.dtype.name, total.dtype)
    return collective(total.astype(wide), axis).astype(total.dtype)


def _extreme(dtype: Any, *, lowest: bool) -> Any:
    if dtype == np.bool_:
        return not lowest
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min if lowest else jnp.iinfo(dtype).max
    return -np.inf if lowest else np.inf
