"""The search as a Markov decision process: one episode is one plan.

The potential of a partial plan is the lowest cost of the whole plans it is looked at through (`features.py`), and the
reward of a decision is the drop of the potential. The rewards of an episode therefore sum to the cost of the first
potential less that of its plan, whatever the look-ahead says on the way (potential-based shaping: Ng, Harada, Russell,
1999). A plan that does not fit costs a finite penalty and is no dead end; only a state with no valid decision is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from automap_launch.plan.decision import Decision
from automap_launch.search.evaluator import Evaluator
from automap_launch.search.features import FEATURES, ActionFeatures, Array, LookAhead, look_ahead
from automap_launch.search.space import STYLES, Choice, Partial, PlanSpace, Style
from automap_launch.search.spared import SparedDecisions, asked_again

# In units of log seconds: worse than any plan of sensible cost, and finite.
DEAD_END_REWARD = -5.0


@dataclass(frozen=True)
class Observation:
    """What the agent sees. `features`: float32[actions, features]. `mask`: bool[actions], True where valid."""

    features: Array
    mask: npt.NDArray[np.bool_]


class SupportsEpisodes(Protocol):
    """What an agent is trained on. `reset` returns None when there is nothing to decide."""

    def reset(self) -> Observation | None: ...
    def step(self, action: int) -> tuple[float, Observation | None]: ...


class Environment:
    """Episodes over the evaluator's space; every plan looked at on the way is evaluated and competes for the best.

    Ways that the space's pruning rules out are masked (`PruningConfig`); decisions that it spares are left out.

    Args:
      start: what is decided before each episode begins; nothing by default. It may change from episode to episode.
    """

    def __init__(self, evaluator: Evaluator, start: Callable[[], Partial] | None = None) -> None:
        self._space = evaluator.space
        self._evaluator = evaluator
        self._memory_limit = evaluator.model.memory_limit
        self._begin = start or self._space.start
        first = self._space.start()
        self._starts = {first: self._look([first])[0]}
        self._features = ActionFeatures(
            self._space, self._starts[first], self._memory_limit, evaluator.model.cluster.devices_per_host
        )
        self._spared = SparedDecisions(self._space.program, self._space.pruning)
        self._repeats = 0
        self._seen: LookAhead
        self._partial = first
        self._choices: Sequence[Choice] = ()
        self._mask = np.zeros(0, bool)
        self._after: Sequence[LookAhead] = ()

    @property
    def decision(self) -> Decision:
        """The plan of the episode; what is not decided is left as it is."""
        return self._space.complete(self._partial)

    @property
    def partial(self) -> Partial:
        """What is decided so far."""
        return self._partial

    @property
    def choices(self) -> Sequence[Choice]:
        """The actions of the last observation."""
        return self._choices

    def reset(self) -> Observation | None:
        """Begins an episode.

        Raises:
          SearchEnd: the search is over.
        """
        self._partial, self._repeats = self._begin(), 0
        if self._partial not in self._starts:
            self._starts[self._partial] = self._look([self._partial])[0]
        self._seen = self._starts[self._partial]
        return self._observe()

    def step(self, action: int) -> tuple[float, Observation | None]:
        """Takes the decision. Returns its reward and what comes next: None when the plan is complete or at a dead end.

        Raises:
          ValueError: the action is masked.
          SearchEnd: the search is over.
        """
        choice = self._choices[action]
        if not self._mask[action]:
            raise ValueError(f"action {action} of a {choice.kind} decision is masked")
        if not choice.valid:
            return DEAD_END_REWARD, None
        before, after = self._seen, self._after[action]
        self._partial, self._seen = choice.result, after
        self._repeats = self._repeats - 1 if self._repeats else self._spared.after(choice)
        observation = self._observe_again(action) if self._repeats else self._observe()
        reward = before.potential - after.potential
        if observation is not None and not any(c.valid for c in self._choices):
            return reward + DEAD_END_REWARD, None
        return reward, observation

    def _observe(self) -> Observation | None:
        self._choices = self._space.choices(self._partial)
        if not self._choices:
            return None
        possible = np.array([c.valid for c in self._choices])
        valid = [c for c in self._choices if c.valid]
        seen = self._look([c.result for c in valid])
        features = np.zeros((len(possible), len(FEATURES)), np.float32)
        features[possible] = self._features(valid, self._seen, seen) if valid else 0
        after = iter(seen)
        self._after = [next(after) if c.valid else self._seen for c in self._choices]
        self._mask = self._masked(possible, seen)
        return Observation(features, self._mask)

    def _observe_again(self, taken: int) -> Observation:
        """The decision that was just taken, asked once more. It leads to the present state: nothing is priced."""
        self._evaluator.check_limits()
        self._choices = asked_again(self._choices, taken)
        features = np.zeros((len(self._choices), len(FEATURES)), np.float32)
        features[taken] = self._features([self._choices[taken]], self._seen, [self._seen])[0]
        self._after = [self._seen] * len(self._choices)
        self._mask = np.ones(len(self._choices), bool)
        return Observation(features, self._mask)

    def _masked(self, possible: npt.NDArray[np.bool_], seen: Sequence[LookAhead]) -> npt.NDArray[np.bool_]:
        """Which ways are offered. Args: possible: those that the space has. seen: of these."""
        prune = self._space.pruning
        mask = possible.copy() if prune.divisibility else np.ones_like(possible)
        fits = np.array([any(estimate.fits for estimate in ahead.styles.values()) for ahead in seen], bool)
        if prune.memory_bound and fits.any():
            mask[np.flatnonzero(possible)[~fits]] = False
        return mask

    def _look(self, partials: Sequence[Partial]) -> list[LookAhead]:
        looks = [_completions(self._space, p) for p in partials]
        estimates = iter(self._evaluator.estimate_many([decision for look in looks for _, decision in look]))
        return [
            look_ahead([(style, decision, next(estimates)) for style, decision in look], self._memory_limit)
            for look in looks
        ]


def _completions(space: PlanSpace, partial: Partial) -> list[tuple[Style, Decision]]:
    """Whole plans of a partial one: each style of it, on every mesh where that is not decided."""
    open_ = [partial]
    if partial.schedule is not None and partial.mesh is None:
        open_ = [c.result for c in space.choices(partial) if c.valid]
    return [(style, space.complete(p, style)) for p in open_ for style in STYLES]
