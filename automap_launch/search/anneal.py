"""Simulated annealing over the neighbours of a plan (Kirkpatrick et al., 1983): what the agent is compared with."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from automap_launch.search.evaluator import Evaluator, log_cost
from automap_launch.search.local_search import neighbours
from automap_launch.search.searchers import OnEpisode, event_of, random_plan

# In units of log seconds: at first every second plan that takes half as long again is accepted.
_HOT, _COLD = 0.6, 0.002


class AnnealingSearcher:
    """Rounds of cooling, each from a random plan. One step looks at one neighbour.

    Args:
      steps: of a round.
    """

    name: ClassVar[str] = "anneal"

    def __init__(self, seed: int, steps: int = 2000) -> None:
        self._rng = np.random.default_rng(seed)
        self._steps = steps

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        """Raises SearchEnd, the evaluator's, when a limit is reached."""
        limit = evaluator.model.memory_limit
        while True:
            evaluator.episode += 1
            decision = random_plan(evaluator.space, self._rng)
            cost = log_cost(evaluator.estimate(decision), limit)
            near = neighbours(evaluator.space, decision)
            for step in range(self._steps):
                temperature = _HOT * (_COLD / _HOT) ** (step / self._steps)
                if not near:
                    break
                candidate = near[self._rng.integers(len(near))]
                other = log_cost(evaluator.estimate(candidate), limit)
                if other <= cost or self._rng.random() < math.exp((cost - other) / temperature):
                    decision, cost = candidate, other
                    near = neighbours(evaluator.space, decision)
            on_episode(event_of(evaluator, None, None))
