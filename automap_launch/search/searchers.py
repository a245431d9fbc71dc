"""What can look for a plan, behind one interface. A searcher proposes plans to the evaluator until that ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch

from automap_launch.search.agent import Agent
from automap_launch.search.environment import Environment
from automap_launch.search.evaluator import Evaluator

SWEEP_BATCH = 256
# So many episodes in a row without a plan that was not known end a round.
STALE_EPISODES = 20


@dataclass(frozen=True)
class EpisodeEvent:
    """After each episode.

    Attributes:
      episode: counted from 1. epsilon: its share of random decisions, None for a searcher without one.
      loss: mean over its learning steps, None before learning begins.
      best_step_seconds: of the best plan so far that fits, None while there is none.
    """

    episode: int
    epsilon: float | None
    loss: float | None
    best_step_seconds: float | None
    seconds: float
    evaluations: int


OnEpisode = Callable[[EpisodeEvent], None]


class Searcher(Protocol):
    """A way to look for a plan. `name` is what `found_by` says of the plans it finds."""

    name: ClassVar[str]

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        """Proposes plans; returns when it has nothing more to propose.

        Raises:
          SearchEnd: the evaluator's, when a limit is reached.
        """


class HeuristicSearcher:
    """The simplest plans of every mesh: nothing sharded on `model`, and all that can be.

    The baselines are evaluated before any searcher; this one gives an answer where the pins rule them out.
    """

    name: ClassVar[str] = "heuristic"

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        if evaluator.best is None:
            space = evaluator.space
            results = [c.result for c in space.choices(space.start()) if c.valid] or [space.start()]
            evaluator.estimate_many([space.complete(result, shard) for result in results for shard in (False, True)])


class RandomSearcher:
    """Takes a random valid way at every decision."""

    name: ClassVar[str] = "random"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        space = evaluator.space
        while True:
            partial = space.start()
            while choices := [c for c in space.choices(partial) if c.valid]:
                partial = choices[self._rng.integers(len(choices))].result
            evaluator.episode += 1
            evaluator.estimate(space.complete(partial, shard=False))
            on_episode(_event(evaluator, None, None))


class DQNSearcher:
    """Rounds of an agent's episodes. A round ends when its episodes no longer find better plans, or new ones.

    Args:
      sweep_limit: it goes on with a new round of exploration while more plans than this are left untried.
    """

    name: ClassVar[str] = "dqn"

    def __init__(self, agent: Agent, sweep_limit: int) -> None:
        self.agent = agent
        self._sweep_limit = sweep_limit

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        with _one_thread():
            environment = Environment(evaluator)
            while True:
                self._round(environment, evaluator, on_episode)
                if evaluator.remaining <= self._sweep_limit:
                    return
                self.agent.explore_anew()

    def _round(self, environment: Environment, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        config = self.agent.config
        explored = last_gain = self.agent.episodes + config.epsilon_episodes
        stale = 0
        while (
            self.agent.episodes - max(last_gain, explored) < config.round_episodes
            and stale < STALE_EPISODES
            # Past half of a small space, trying the rest one by one is quicker than learning, and proves the optimum.
            and (evaluator.remaining > evaluator.covered or evaluator.remaining > self._sweep_limit)
        ):
            evaluator.episode += 1
            best, known, epsilon = evaluator.best, evaluator.evaluations, self.agent.epsilon
            loss = self.agent.run_episode(environment)
            on_episode(_event(evaluator, epsilon, loss))
            if evaluator.best is not best:
                last_gain = self.agent.episodes
            stale = stale + 1 if evaluator.evaluations == known else 0


def sweep(evaluator: Evaluator) -> None:
    """Evaluates every plan that is left.

    Raises:
      SearchEnd: a limit was reached before.
    """
    batch = []
    for decision in evaluator.space:
        if evaluator.is_new(decision):
            batch.append(decision)
        if len(batch) == SWEEP_BATCH:
            evaluator.estimate_many(batch)
            batch = []
    if batch:
        evaluator.estimate_many(batch)


def _event(evaluator: Evaluator, epsilon: float | None, loss: float | None) -> EpisodeEvent:
    best = evaluator.best.estimate.step_seconds if evaluator.best else None
    return EpisodeEvent(evaluator.episode, epsilon, loss, best, evaluator.seconds, evaluator.evaluations)


@contextmanager
def _one_thread() -> Iterator[None]:
    """On small networks several threads only cost, and the order of their sums would depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
