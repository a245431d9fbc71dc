"""Prioritised n-step replay (Schaul et al., 2016; Sutton, 1988)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.search.environment import Observation

# Keeps transitions with no error at all within reach of sampling.
MIN_PRIORITY = 1e-3


@dataclass(frozen=True)
class Step:
    """One decision of an episode. `explored`: it was drawn at random, not the one of highest Q."""

    state: Observation
    action: int
    reward: float
    explored: bool = False


@dataclass(frozen=True)
class Transition:
    """From a state to the one n decisions later.

    Attributes:
      reward: discounted sum of the rewards on the way. discount: of the value of `following`.
      following: None when the episode ended on the way.
      outcome: discounted sum of all rewards to the episode's end.
    """

    state: Observation
    action: int
    reward: float
    discount: float
    following: Observation | None
    outcome: float


def transitions_of(episode: Sequence[Step], n: int, discount: float) -> list[Transition]:
    """The n-step transitions of a whole episode, shorter ones at its end.

    A transition ends before a later decision that was drawn at random, since what followed says nothing about the best
    that could have (Watkins, 1989).
    """
    outcomes = [0.0]
    for step in reversed(episode):
        outcomes.append(step.reward + discount * outcomes[-1])
    outcomes.reverse()
    transitions = []
    for i, step in enumerate(episode):
        last = min(i + n, len(episode))
        end = next((k for k in range(i + 1, last) if episode[k].explored), last)
        reward = outcomes[i] - discount ** (end - i) * outcomes[end]
        following = episode[end].state if end < len(episode) else None
        transitions.append(Transition(step.state, step.action, reward, discount ** (end - i), following, outcomes[i]))
    return transitions


class SumTree:
    """A binary tree of sums over `capacity` weights: sampling by weight takes a logarithmic number of steps."""

    def __init__(self, capacity: int) -> None:
        self.leaves = 1 << max(capacity - 1, 0).bit_length()
        self._tree = np.zeros(2 * self.leaves)

    @property
    def total(self) -> float:
        return float(self._tree[1])

    def __getitem__(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return self._tree[self.leaves + indices]

    def set(self, indices: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> None:
        """Sets the weights at `indices`; of an index that occurs twice, the last."""
        nodes = self.leaves + indices
        self._tree[nodes] = weights
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._tree[nodes] = self._tree[2 * nodes] + self._tree[2 * nodes + 1]

    def find(self, positions: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The leaf whose span of the running sum holds each position in [0, total)."""
        nodes = np.ones(len(positions), np.int64)
        rest = positions.copy()
        while nodes[0] < self.leaves:
            left = self._tree[2 * nodes]
            # A right branch without weight is never entered, whatever rounding does at the end of the range.
            right = (rest >= left) & (self._tree[2 * nodes + 1] > 0)
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self.leaves


class PrioritisedReplay:
    """The last `capacity` transitions, sampled in proportion to priority ** exponent.

    A new transition gets the highest priority seen, so that each one is learnt from soon.
    """

    def __init__(self, capacity: int, exponent: float, importance_exponent: float) -> None:
        self._capacity = capacity
        self._exponent = exponent
        self._importance_exponent = importance_exponent
        self._tree = SumTree(capacity)
        self._next = 0
        self._highest = 1.0
        self.transitions: list[Transition] = []

    def __len__(self) -> int:
        return len(self.transitions)

    def add(self, transitions: Sequence[Transition]) -> None:
        for transition in transitions:
            if len(self.transitions) < self._capacity:
                self.transitions.append(transition)
            else:
                self.transitions[self._next] = transition
            self._tree.set(np.array([self._next]), np.array([self._highest**self._exponent]))
            self._next = (self._next + 1) % self._capacity

    def sample(
        self, count: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], list[Transition], npt.NDArray[np.float32]]:
        """Indices, transitions, and importance weights float32[count], the largest of them 1."""
        positions = (np.arange(count) + rng.random(count)) * (self._tree.total / count)
        indices = self._tree.find(positions)
        probabilities = self._tree[indices] / self._tree.total
        weights = (len(self) * probabilities) ** -self._importance_exponent
        return indices, [self.transitions[i] for i in indices], (weights / weights.max()).astype(np.float32)

    def update(self, indices: npt.NDArray[np.int64], errors: npt.NDArray[np.float32]) -> None:
        """Priorities follow the size of the temporal-difference errors."""
        priorities = np.abs(errors.astype(np.float64)) + MIN_PRIORITY
        self._highest = max(self._highest, float(priorities.max()))
        self._tree.set(indices, priorities**self._exponent)

    def state(self) -> tuple[npt.NDArray[np.float64], int, float]:
        """Weights of the transitions, the place of the next one, the highest priority: all but the transitions."""
        return self._tree[np.arange(len(self))], self._next, self._highest

    def restore(
        self, transitions: Sequence[Transition], weights: npt.NDArray[np.float64], following: int, highest: float
    ) -> None:
        """The inverse of `state`."""
        self.transitions = list(transitions)
        self._tree = SumTree(self._capacity)
        if transitions:
            self._tree.set(np.arange(len(transitions)), weights)
        self._next = following
        self._highest = highest
