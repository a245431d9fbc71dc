"""`ModuleFunction`: a captured StableHLO module as a function of JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from automap_launch.runtime import jax_internals
from automap_launch.train_step import Argument, Result

# What JAX prints inside `key<...>`, by the name that `jax.random.wrap_key_data` takes.
_KEY_IMPLEMENTATIONS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}


def key_implementation(dtype: str) -> str | None:
    """PRNG implementation of a typed key's dtype (`key<fry>` -> `threefry2x32`); None for an ordinary dtype.

    Raises:
      ValueError: a PRNG implementation of the user's own.
    """
    if not dtype.startswith("key<"):
        return None
    tag = dtype.removeprefix("key<").removesuffix(">")
    if tag not in _KEY_IMPLEMENTATIONS:
        known = ", ".join(_KEY_IMPLEMENTATIONS.values())
        raise ValueError(
            f"PRNG keys of dtype {dtype} are not supported: use jax.random.key(seed, impl=...) with {known}"
        )
    return _KEY_IMPLEMENTATIONS[tag]


class ModuleFunction:
    """Flat arrays in, flat arrays out, to be called under `jax.jit`.

    A typed PRNG key has shape `()` for the user and `(2,)` of uint32 (threefry) for the module: keys are unwrapped
    on the way in and wrapped on the way out.

    Args:
      artifact: a portable StableHLO artifact with a function `main`.
      arguments, results: of that function, in its order, as the user's script sees them.
      name: a hint for the function's name in profiles.

    Raises:
      ValueError: the module's function type is not that of `arguments` and `results`.
    """

    def __init__(
        self, artifact: bytes, arguments: Sequence[Argument], results: Sequence[Result], name: str = "train_step"
    ) -> None:
        inputs, self._outputs = jax_internals.signature(artifact)
        self._module = jax_internals.Module(artifact, name)
        self._argument_keys = [key_implementation(a.dtype) for a in arguments]
        self._result_keys = [key_implementation(r.dtype) for r in results]
        _check("argument", inputs, arguments)
        _check("result", self._outputs, results)

    def __call__(self, *leaves: Any) -> list[Any]:
        """Flat results for flat arguments.

        Raises:
          ValueError: another number of arguments than the module has.
        """
        plain = [
            jax.random.key_data(leaf) if key else leaf for leaf, key in zip(leaves, self._argument_keys, strict=True)
        ]
        outputs = jax_internals.bind(self._module, self._outputs, plain)
        return [
            jax.random.wrap_key_data(output, impl=key) if key else output
            for output, key in zip(outputs, self._result_keys, strict=True)
        ]


def _check(what: str, tensors: Sequence[jax_internals.Tensor], named: Sequence[Argument | Result]) -> None:
    if len(tensors) != len(named):
        raise ValueError(f"the module has {len(tensors)} {what}s, the step {len(named)}")
    for tensor, item in zip(tensors, named, strict=True):
        if key_implementation(item.dtype):
            matches = tensor.shape[: len(item.shape)] == item.shape
        else:
            matches = (tensor.shape, tensor.dtype.name) == (item.shape, item.dtype)
        if not matches:
            raise ValueError(
                f"{what} {item.path} is {item.dtype}{list(item.shape)}, "
                f"but {tensor.dtype.name}{list(tensor.shape)} in the module"
            )
