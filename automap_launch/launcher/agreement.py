"""Do the ranks run the same thing? A script that is not the same on each would train to nonsense without a word."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from automap_launch.errors import AutomapError
from automap_launch.train_step import Argument


class RanksDifferError(AutomapError):
    """The script does not do the same on every rank."""

    kind = "script"


def check_same_program(fingerprint: str) -> None:
    """Makes sure that all ranks call the step with the same program. A collective.

    Args:
      fingerprint: of the step's program, hexadecimal.

    Raises:
      RanksDifferError: it is another one on some rank.
    """
    found = _first_that_differs([int(fingerprint[i : i + 8], 16) for i in range(0, len(fingerprint), 8)])
    if found is not None:
        raise RanksDifferError(
            f"the train step of rank {found[0]} is another program than that of rank 0",
            hint="every process runs the same script: the step must not depend on random numbers without a seed, "
            "the time of day, the host's name or RANK",
        )


def slowest(seconds: Sequence[float]) -> list[float]:
    """For each place, the largest number that any rank has: all wait for the slowest. A collective."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return list(seconds)
    # As float32, which JAX carries whatever the script has set.
    every = np.asarray(multihost_utils.process_allgather(np.array(seconds, dtype=np.float32)))
    return [float(longest) for longest in every.max(axis=0)]


def check_same_values(arguments: Sequence[Argument], leaves: Sequence[Any]) -> None:
    """Makes sure that all ranks give their first step the same state, batch, keys and numbers. A collective.

    What is created in place is made by one program, and what spans processes is one array: both are the same.

    Args:
      arguments, leaves: of the step's first call.

    Raises:
      RanksDifferError: some rank has other values.
    """
    import jax

    if jax.process_count() == 1:
        return
    given = zip(arguments, leaves, strict=True)
    own = [(a, leaf) for a, leaf in given if not isinstance(leaf, jax.core.Tracer) and _is_own(leaf)]
    found = _first_that_differs([_checksum(leaf) for _, leaf in own])
    if found is not None:
        rank, index = found
        argument = own[index][0]
        what = f"the batch {argument.path}" if argument.role == "batch" else argument.path
        raise RanksDifferError(
            f"rank {rank} begins with other values of {what} than rank 0",
            hint="every process runs the same script: give its random numbers, and the order of its data, a seed "
            "(`jax.random.key(0)`, `np.random.default_rng(0)`)",
        )


def _is_own(leaf: Any) -> bool:
    import jax

    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def _checksum(leaf: Any) -> int:
    import jax
    import numpy as np

    key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return zlib.crc32(np.ascontiguousarray(jax.random.key_data(leaf) if key else leaf).tobytes())


def _first_that_differs(numbers: Sequence[int]) -> tuple[int, int] | None:
    """Lowest rank whose 32-bit `numbers` are not rank 0's, and the index of the first such number. A collective."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return None
    every = np.asarray(multihost_utils.process_allgather(np.array(numbers, dtype=np.uint32)))
    different = np.argwhere(every != every[0])
    return (int(different[0][0]), int(different[0][1])) if len(different) else None
