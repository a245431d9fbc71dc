"""Batch rules, a file a kind of operation. `states_of` applies the rule of an operation's name."""

from __future__ import annotations

from automap_launch.program.batch_analysis import State
from automap_launch.program.state_rules import contraction, indexing, moving, opaque
from automap_launch.program.state_rules.reducing import reduced
from automap_launch.program.state_rules.site import RULES, Site, UnsplitError

__all__ = ["Site", "UnsplitError", "reduced", "states_of"]

_FILES = (contraction, indexing, moving, opaque)  # importing a file registers its rules


def states_of(site: Site) -> list[State]:
    """States of the results of an operation with an operand of state `batch`.

    Raises:
      UnsplitError: it cannot run on parts of the batch.
    """
    return RULES.get(site.node.name, opaque.unknown)(site)
