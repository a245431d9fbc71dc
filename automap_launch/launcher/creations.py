"""What the script of rank 0 makes is not there yet for the scripts of the other ranks, which will make it themselves.

Rank 0 writes where the script says. Were the others to see that, `if os.path.exists(folder): sys.exit(...)` before
`os.makedirs(folder)` would go one way on rank 0, which comes first, and the other way on a rank that comes later. So
rank 0 tells JAX's coordination service of each path before it makes it, and the others ask there about files that are
new.
"""

from __future__ import annotations

from functools import cache

import jax

from automap_launch.runtime.jax_internals import coordination_client

_PREFIX = "automap_launch/made_by_rank_0"


def announce(path: str) -> None:
    """Rank 0 is about to make `path` (absolute)."""
    coordination_client().key_value_set(_PREFIX + path, "made", allow_overwrite=True)


@cache
def is_announced(path: str) -> bool:
    """Whether rank 0 has made `path`, which exists."""
    try:
        coordination_client().key_value_try_get(_PREFIX + path)
    except jax.errors.JaxRuntimeError:  # there is no such key; or no service any more, at the very end
        return False
    return True
