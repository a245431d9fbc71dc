"""What can look for a plan, behind one interface. A searcher proposes plans to the evaluator until that ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch

from automap_launch.plan.decision import Decision
from automap_launch.search.evaluator import Evaluator
from automap_launch.search.space import STYLES, Head, Partial, PlanSpace


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
    """The simplest plans of every head: nothing sharded on `model`, what one would by hand, and all that can be.

    The baselines are evaluated before any searcher; this one gives an answer where the pins rule them out.
    """

    name: ClassVar[str] = "heuristic"

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        if evaluator.best is None:
            evaluator.estimate_many(single_stage_plans(evaluator.space) or simple_plans(evaluator.space))
        if evaluator.best is None:
            evaluator.estimate_many(simple_plans(evaluator.space))


class RandomSearcher:
    """Takes a random valid way at every decision."""

    name: ClassVar[str] = "random"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        space = evaluator.space
        while True:
            evaluator.episode += 1
            evaluator.estimate(random_plan(space, self._rng))
            on_episode(event_of(evaluator, None, None))


def random_plan(space: PlanSpace, rng: np.random.Generator) -> Decision:
    """A plan by a random valid way at every decision."""
    partial = space.start()
    while choices := [c for c in space.choices(partial) if c.valid]:
        partial = choices[rng.integers(len(choices))].result
    return space.complete(partial)


def single_stage_plans(space: PlanSpace) -> list[Decision]:
    """The simple plans of one stage."""
    return _simple(space, [head for head in space.heads if head.stages == 1])


def simple_plans(space: PlanSpace) -> list[Decision]:
    """Of every head each simple plan, with balanced cuts."""
    return _simple(space, space.heads)


def _simple(space: PlanSpace, heads: Sequence[Head]) -> list[Decision]:
    partials = [space.settled(Partial(h.stages, h.micro_batches, h.schedule, h.mesh)) for h in heads]
    return list(dict.fromkeys(space.complete(p, style) for p in partials for style in STYLES))


def event_of(evaluator: Evaluator, epsilon: float | None, loss: float | None) -> EpisodeEvent:
    best = evaluator.best.estimate.step_seconds if evaluator.best else None
    return EpisodeEvent(evaluator.episode, epsilon, loss, best, evaluator.seconds, evaluator.evaluations)


@contextmanager
def one_thread() -> Iterator[None]:
    """On small networks several threads only cost, and the order of their sums would depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
