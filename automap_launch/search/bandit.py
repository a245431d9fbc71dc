"""Upper confidence bounds over (stages, micro-batches): where to explore (Auer et al., 2002).

Without them the agent's exploration collapses onto the first number of stages that looks good; convolutional networks,
whose best pipelines are far from the obvious, suffer most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from automap_launch.search.space import Partial, PlanSpace

Arm = tuple[int, int]


@dataclass
class Bandit:
    """Chooses the arm of the best cost seen, less a bonus for arms seldom chosen.

    Attributes:
      arms: (stages, micro-batches) that the space has. exploration: the bonus, in units of log seconds.
      best: the lowest cost of each arm. visits: how often each was chosen.
    """

    arms: tuple[Arm, ...]
    exploration: float
    best: dict[Arm, float] = field(default_factory=dict)
    visits: dict[Arm, int] = field(default_factory=dict)

    def choose(self) -> Arm:
        """The arm to try next; those never tried come first."""
        total = sum(self.visits.values()) + 1

        def value(arm: Arm) -> float:
            visits = self.visits.get(arm, 0)
            if visits == 0:
                return math.inf
            return self.exploration * math.sqrt(math.log(total) / visits) - self.best[arm]

        return max(self.arms, key=value)

    def saw(self, arm: Arm, cost: float) -> bool:
        """Notes a visit and its cost; whether it is the arm's best so far."""
        self.visits[arm] = self.visits.get(arm, 0) + 1
        better = cost < self.best.get(arm, math.inf)
        if better:
            self.best[arm] = cost
        return better


def arms_of(space: PlanSpace) -> tuple[Arm, ...]:
    return tuple(dict.fromkeys((head.stages, head.micro_batches) for head in space.heads))


def begun(space: PlanSpace, arm: Arm) -> Partial:
    """The partial plan in which an arm is decided."""
    return space.settled(Partial(*arm))
