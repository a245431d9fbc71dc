"""The decisions that two prunings spare the agent, for searches without them (`PruningConfig`).

Linkage groups: dims that propagation ties are decided together. Forward-only cuts: the backward part and the update of
a stage are cut where its forward part is. Without either, each decision about a group, or a cut, is followed by one for
every further dim of a parameter in the group, or for the backward part and for the update, and each is among the same
ways as the first. All ways but the one that was taken first are dead ends: propagation has fixed the dim, and a stage's
backward part and update need what its forward part holds. So the plans stay the same, and the episodes get longer. What
leaves one way only is not asked again, as it was not asked at first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from automap_launch.program.program import Program
from automap_launch.search.config import PruningConfig
from automap_launch.search.space import Choice

# A cut of the forward part stands for one of the backward part and one of the update.
MIRRORED_CUTS = 2


def parameter_dims(program: Program) -> Counter[int]:
    """By group id, how many dims of parameters are in the group; none of groups that hold activations alone."""
    groups = (group for k in program.parameters for group in program.dim_groups[program.arguments[k]])
    return Counter(group for group in groups if group is not None)


class SparedDecisions:
    """How often each decision is asked again."""

    def __init__(self, program: Program, pruning: PruningConfig) -> None:
        self._dims = Counter[int]() if pruning.linkage_groups else parameter_dims(program)
        self._cuts = 0 if pruning.forward_only_cuts else MIRRORED_CUTS

    def after(self, choice: Choice) -> int:
        """The number of decisions that only repeat this one."""
        if choice.group is not None:
            return max(self._dims[choice.group.id] - 1, 0)
        return self._cuts if choice.kind == "cut" else 0


def asked_again(choices: Sequence[Choice], taken: int) -> tuple[Choice, ...]:
    """The decision once more: each way leads where the first one led, and all but that one contradict it."""
    result = choices[taken].result
    return tuple(replace(choice, result=result, valid=i == taken) for i, choice in enumerate(choices))
