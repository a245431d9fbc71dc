"""Lessons for the agent: states of made-up models, each with the outcome of every action that is valid there.

An action's outcome is the reward of taking it and then following the policy that the network begins with, greedy on the
look-ahead: the value Q of this policy without any noise, since plans and costs are deterministic. Greedy on it is a
better policy (Sutton and Barto, policy improvement).

Most of what the look-ahead loses it loses by its first decisions, stages and micro-batches, so each walk through a
model takes a lesson at every one of these and at some of the rest. Half of the walks go on by the best outcomes, which
is where a network goes that has learnt its lessons; the other half begin anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig
from automap_launch.search.environment import Environment, Observation
from automap_launch.search.evaluator import Evaluator, log_cost
from automap_launch.search.features import FEATURES
from automap_launch.search.searchers import simple_plans
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw

FEWEST_PLANS = 100
# Decisions at which every walk takes a lesson.
FIRST_KINDS = ("stages", "micro_batches")
# Plans costed at a time when one that fits is looked for.
_AT_A_TIME = 16


@dataclass(frozen=True)
class Lesson:
    """A state of a model, and the outcome of each of its actions; NaN where it is masked."""

    model: int
    state: Observation
    outcomes: npt.NDArray[np.float64]


class Classroom:
    """A model with an environment whose episodes begin at `start`."""

    def __init__(self, model: SyntheticModel) -> None:
        self.space = PlanSpace(model.program, model.pins)
        self.start = self.space.start()
        self.environment = Environment(Evaluator(model, self.space), lambda: self.start)
        self._model = model

    def greedy_cost(self, agent: Agent) -> float:
        """Of the plan that one greedy episode ends with (`log_cost`)."""
        self.start = self.space.start()
        agent.roll_out(self.environment)
        return log_cost(self._model.estimate(self.environment.decision), self._model.memory_limit)


def take_lessons(rng: np.random.Generator, models: Iterator[SyntheticModel], later: float) -> Iterator[Lesson]:
    """Args: later: the share of decisions after the first two that a lesson is taken at."""
    agent = Agent(AgentConfig())
    for number, model in enumerate(models):
        room = Classroom(model)
        for anywhere in (False, True):
            for state, outcomes in _walk(room, rng, agent, later, anywhere):
                yield Lesson(number, state, outcomes)


def _walk(
    room: Classroom, rng: np.random.Generator, agent: Agent, later: float, anywhere: bool
) -> Iterator[tuple[Observation, npt.NDArray[np.float64]]]:
    """Lessons on the way from an undecided plan to a whole one.

    Args:
      anywhere: begins by a random number of stages and goes on by random micro-batches as often as by the best.
    """
    environment = room.environment
    room.start = room.space.start()
    state = environment.reset()
    while state is not None:
        kind, among = environment.choices[0].kind, np.flatnonzero(state.mask)
        random = anywhere and (kind == "stages" or (kind == "micro_batches" and rng.random() < 0.5))
        taught = kind != "stages" or not anywhere
        if len(among) > 1 and taught and (kind in FIRST_KINDS or rng.random() < later):
            outcomes = _outcomes(room, state, agent)
            yield state, outcomes
            action = int(np.nanargmax(outcomes))
        else:
            action = agent.act(state)
        state = environment.reset()
        assert state is not None, "as before"
        state = environment.step(int(rng.choice(among)) if random else action)[1]
        room.start = environment.partial


def _outcomes(room: Classroom, state: Observation, agent: Agent) -> npt.NDArray[np.float64]:
    """Of each action of the state that the classroom's episodes begin at."""
    environment = room.environment
    outcomes = np.full(len(state.mask), np.nan)
    for action in np.flatnonzero(state.mask).tolist():
        environment.reset()
        outcomes[action], following = environment.step(action)
        while following is not None:
            reward, following = environment.step(agent.act(following))
            outcomes[action] += reward
    return outcomes


def models_of(
    rng: np.random.Generator, distributions: Mapping[str, Distribution], count: int
) -> Iterator[tuple[str, SyntheticModel]]:
    """So many models, of the distributions in turn, each with the name of its own."""
    names = list(distributions)
    for number in range(count):
        name = names[number % len(names)]
        yield name, usable(rng, distributions[name])


def usable(rng: np.random.Generator, distribution: Distribution) -> SyntheticModel:
    """A model with enough plans, of which a simple one fits."""
    while True:
        model = draw(rng, distribution)
        space = PlanSpace(model.program, model.pins)
        if space.size >= FEWEST_PLANS and _fits(model, space):
            return model


def _fits(model: SyntheticModel, space: PlanSpace) -> bool:
    plans = simple_plans(space)[::-1]  # those of many stages, which need the least memory, first
    parts = (plans[at : at + _AT_A_TIME] for at in range(0, len(plans), _AT_A_TIME))
    return any(cost.fits for part in parts for cost in model.estimate_many(part))


def save_lessons(file: Path, lessons: Sequence[Lesson], seconds: float) -> None:
    """Args: seconds: of CPU time that they took."""
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        file,
        seconds=np.array(seconds),
        models=np.array([lesson.model for lesson in lessons]),
        actions=np.array([len(lesson.outcomes) for lesson in lessons]),
        features=np.concatenate([lesson.state.features for lesson in lessons]),
        outcomes=np.concatenate([lesson.outcomes for lesson in lessons]),
    )


def load_lessons(file: Path) -> tuple[list[Lesson], float]:
    """Those of an earlier call and the CPU seconds they took; made with other features they are of no use."""
    if not file.exists():
        return [], 0.0
    with np.load(file) as kept:
        models, features, outcomes = kept["models"].tolist(), kept["features"], kept["outcomes"]
        ends, seconds = np.cumsum(kept["actions"])[:-1], float(kept["seconds"])
    if features.shape[1] != len(FEATURES):
        return [], 0.0
    split = zip(models, np.split(features, ends), np.split(outcomes, ends), strict=True)
    return [Lesson(model, Observation(rows, ~np.isnan(own)), own) for model, rows, own in split], seconds
