"""64-bit types of a step hold also where the script has not turned them on (another front end's step)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax

from automap_launch.train_step import Argument, Result

_WIDE = frozenset({"float64", "int64", "uint64", "complex128"})


class Precision:
    """The types under which a step is traced and run.

    Args:
      arguments, results: of the step.
    """

    def __init__(self, arguments: Sequence[Argument], results: Sequence[Result]) -> None:
        self._wide = not _WIDE.isdisjoint([a.dtype for a in arguments] + [r.dtype for r in results])

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        return wide_types(self._wide)


def wide_types(wanted: bool) -> contextlib.AbstractContextManager[Any]:
    """JAX keeps 64-bit types within it, if they are `wanted`."""
    if wanted and not jax.config.jax_enable_x64:
        wide: contextlib.AbstractContextManager[Any] = jax.enable_x64(True)
        return wide
    return contextlib.nullcontext()
