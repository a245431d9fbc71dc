"""Trains the agent on made-up models and writes the weights that come with the package, with their card.

    python tools/pretrain_agent.py                       # as the shipped weights were made: about seven minutes of CPU
    python tools/pretrain_agent.py --config my.yaml --out /tmp/weights

Models are drawn from the distributions of `search/synthetic.py`; `tools/pretrain_agent.yaml` holds every setting. A
*lesson* is a state with the outcome of each of its valid actions, followed by the policy that the network begins with:
greedy on the look-ahead. That is the value Q of this policy without any noise, since plans and costs are deterministic,
and greedy on it is a better policy (Sutton and Barto, policy improvement). The network learns how the outcomes of a
state's actions differ, which is all that a greedy decision depends on: trained on outcomes as such, as ordinary deep Q-
learning is, it learns mostly how far each model can be improved at all, and is behind the look-ahead.

Lessons are kept in `outputs/pretrain/`. One model in eight is left out of the training, and tells
whether it helps beyond it; models of a validation set tell by how much what is learnt should correct the look-ahead.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from safetensors.torch import save  # noqa: E402
from torch import nn  # noqa: E402

from automap_launch.search.agent import Agent, collate  # noqa: E402
from automap_launch.search.bandit import arms_of, begun  # noqa: E402
from automap_launch.search.config import AgentConfig  # noqa: E402
from automap_launch.search.environment import Environment, Observation  # noqa: E402
from automap_launch.search.evaluator import Evaluator, log_cost  # noqa: E402
from automap_launch.search.features import FEATURES  # noqa: E402
from automap_launch.search.searchers import simple_plans  # noqa: E402
from automap_launch.search.space import Partial, PlanSpace  # noqa: E402
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw  # noqa: E402
from automap_launch.search.weights import CARD, FOLDER, WEIGHTS  # noqa: E402

CONFIG = ROOT / "tools" / "pretrain_agent.yaml"
OUT = ROOT / "automap_launch" / "search" / FOLDER
LESSONS = ROOT / "outputs" / "pretrain" / "lessons.npz"
FEWEST_PLANS = 100
FACTORS = (1.0, 0.75, 0.5, 0.25, 0.0)
LEFT_OUT = 8


@dataclass
class Settings:
    """How the agent is trained.

    Attributes:
      seed: of the models, the weights and the exploration. validation_seed: of the validation set's models.
      models: that lessons are taken from. depths: of the state of each lesson of a model, in decisions; null: any up to
        `deepest`. Every third lesson begins with stages and micro-batches drawn at random.
      epsilon: share of random decisions on the way to a lesson's state.
      steps, batch, learning_rate, weight_decay: of the gradient descent (AdamW, cosine decay).
      clip: actions worse than the best by more than this (log seconds) are only known to be.
      huber: errors beyond it pull linearly. value_weight: of the loss of the value against that of the differences.
      validation: models.
    """

    seed: int = 1
    validation_seed: int = 10_000
    models: int = 713
    depths: tuple[int | None, ...] = (0, 1, 2, 3, 4, None)
    deepest: int = 12
    epsilon: float = 0.15
    steps: int = 1000
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    huber: float = 0.1
    value_weight: float = 0.02
    validation: int = 40
    agent: AgentConfig = field(default_factory=AgentConfig)
    distribution: Distribution = field(default_factory=Distribution)

    @classmethod
    def load(cls, file: Path) -> Settings:
        record = yaml.safe_load(file.read_text())
        ranges = {k: tuple(v) if isinstance(v, list) else v for k, v in record.pop("distribution", {}).items()}
        agent = AgentConfig(**record.pop("agent", {}))
        depths = tuple(record.pop("depths", cls.depths))
        return cls(**record, depths=depths, agent=agent, distribution=Distribution(**ranges))


@dataclass(frozen=True)
class Lesson:
    """A state of a model, and the outcome of each of its actions; NaN where it is masked."""

    model: int
    state: Observation
    outcomes: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Lessons as tensors, padded with masked actions; [lessons, actions]."""

    features: torch.Tensor
    mask: torch.Tensor
    outcomes: torch.Tensor

    def of(self, places: torch.Tensor) -> Batch:
        return Batch(self.features[places], self.mask[places], self.outcomes[places])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--again", action="store_true", help="with new lessons, also where some are kept")
    options = parser.parse_args()
    settings = Settings.load(options.config)
    torch.set_num_threads(1)
    lessons, seconds = ([], 0.0) if options.again else load_lessons()
    if not lessons:
        began = time.process_time()
        for lesson in take_lessons(settings):
            lessons.append(lesson)
            if len(lessons) % 100 == 0:
                print(f"{len(lessons)} lessons of {lesson.model} models", flush=True)
        seconds = time.process_time() - began
        save_lessons(lessons, seconds)
    agent = Agent(settings.agent, settings.seed)
    left_out = [k for k, lesson in enumerate(lessons) if lesson.model % LEFT_OUT == 0]
    learnt = [k for k, lesson in enumerate(lessons) if lesson.model % LEFT_OUT]
    batch, test = packed([lessons[k] for k in learnt]), packed([lessons[k] for k in left_out])
    report: dict[str, Any] = {"regret_before": regret(agent, test)}
    fitting = fit(agent, batch, settings)
    report["regret_after"] = regret(agent, test)
    factor, gains = shrink(agent, settings)
    report["validation"] = gains
    content = save({k: v.contiguous() for k, v in agent.online.state_dict().items()})
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / WEIGHTS).write_bytes(content)
    card = {
        "made_by": "tools/pretrain_agent.py",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "features": list(FEATURES),
        "hidden": settings.agent.hidden,
        "models": settings.models,
        "lessons": len(lessons),
        "gradient_steps": settings.steps,
        "cpu_seconds": {"lessons": round(seconds), "fitting": round(fitting, 1)},
        "shrunk_to": factor,
        "evaluation": report,
        "settings": dataclasses.asdict(settings),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }
    (options.out / CARD).write_text(json.dumps(card, indent=1) + "\n")
    print(json.dumps({k: card[k] for k in ("models", "lessons", "shrunk_to", "evaluation")}, indent=1))
    return 0


# Lessons


class Classroom:
    """A model that lessons are taken from; an episode begins at `start`."""

    def __init__(self, model: SyntheticModel) -> None:
        self.space = PlanSpace(model.program, model.pins)
        self.start: Partial = self.space.start()
        self.arms = arms_of(self.space)
        self.environment = Environment(Evaluator(model, self.space), lambda: self.start)


def take_lessons(settings: Settings) -> Iterator[Lesson]:
    rng = np.random.default_rng(settings.seed)
    agent = Agent(settings.agent)
    for number in range(1, settings.models + 1):
        room = Classroom(usable(rng, settings.distribution))
        for k, depth in enumerate(settings.depths):
            by_arm = k % 3 == 2
            room.start = begun(room.space, room.arms[rng.integers(len(room.arms))]) if by_arm else room.space.start()
            anywhere = int(rng.integers(settings.deepest))
            found = _lesson(room.environment, agent, anywhere if depth is None else depth, settings.epsilon)
            if found is not None:
                yield Lesson(number, *found)


def _lesson(
    environment: Environment, agent: Agent, depth: int, epsilon: float
) -> tuple[Observation, npt.NDArray[np.float64]] | None:
    """The state so many decisions on, and the outcomes of its actions; None where there is nothing to choose."""
    state, way = environment.reset(), []
    for _ in range(depth):
        if state is None:
            return None
        action = agent.act(state, epsilon=epsilon)
        following = environment.step(action)[1]
        if following is None:
            break
        way.append(action)
        state = following
    if state is None or state.mask.sum() < 2:
        return None
    outcomes = np.full(len(state.mask), np.nan)
    for action in np.flatnonzero(state.mask).tolist():
        environment.reset()
        for step in way:
            environment.step(step)
        outcomes[action], following = environment.step(action)
        while following is not None:
            reward, following = environment.step(agent.act(following))
            outcomes[action] += reward
    return state, outcomes


def usable(rng: np.random.Generator, distribution: Distribution) -> SyntheticModel:
    """A model with enough plans, of which a simple one fits."""
    while True:
        model = draw(rng, distribution)
        space = PlanSpace(model.program, model.pins)
        if space.size >= FEWEST_PLANS and any(e.fits for e in model.estimate_many(simple_plans(space))):
            return model


def save_lessons(lessons: Sequence[Lesson], seconds: float) -> None:
    """Args: seconds: of CPU time that they took."""
    LESSONS.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        LESSONS,
        seconds=np.array(seconds),
        models=np.array([lesson.model for lesson in lessons]),
        actions=np.array([len(lesson.outcomes) for lesson in lessons]),
        features=np.concatenate([lesson.state.features for lesson in lessons]),
        outcomes=np.concatenate([lesson.outcomes for lesson in lessons]),
    )


def load_lessons() -> tuple[list[Lesson], float]:
    """Those of an earlier call and the CPU seconds they took; made with other features they are of no use."""
    if not LESSONS.exists():
        return [], 0.0
    with np.load(LESSONS) as file:
        models, features, outcomes = file["models"].tolist(), file["features"], file["outcomes"]
        ends, seconds = np.cumsum(file["actions"])[:-1], float(file["seconds"])
    if features.shape[1] != len(FEATURES):
        return [], 0.0
    split = zip(models, np.split(features, ends), np.split(outcomes, ends), strict=True)
    return [Lesson(model, Observation(rows, ~np.isnan(own)), own) for model, rows, own in split], seconds


def packed(lessons: Sequence[Lesson]) -> Batch:
    features, mask = collate([lesson.state for lesson in lessons])
    outcomes = torch.zeros(mask.shape)
    for row, lesson in zip(outcomes, lessons, strict=True):
        row[: len(lesson.outcomes)] = torch.from_numpy(np.nan_to_num(lesson.outcomes))
    return Batch(features, mask, outcomes)


# Learning


def fit(agent: Agent, lessons: Batch, settings: Settings) -> float:
    """Fits the network to the lessons; returns the seconds of CPU time that it took."""
    began = time.process_time()
    generator = torch.Generator().manual_seed(settings.seed)
    network = agent.online
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    for _ in range(settings.steps):
        own = lessons.of(torch.randint(len(lessons.mask), (settings.batch,), generator=generator))
        optimizer.zero_grad()
        torch.autograd.backward(_loss(network(own.features, own.mask), own, settings))
        optimizer.step()
        schedule.step()
    return time.process_time() - began


def _loss(q: torch.Tensor, lessons: Batch, settings: Settings) -> torch.Tensor:
    """Of how actions of a state differ, and to a small part of how far it is from the best plans."""
    shares = lessons.mask / lessons.mask.sum(1, keepdim=True)
    q = q.masked_fill(~lessons.mask, 0.0)
    behind = (lessons.outcomes - _best(lessons)[:, None]).clamp(min=-settings.clip)
    errors = q - behind
    errors = errors - (errors * shares).sum(1, keepdim=True)
    differences = nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none", beta=settings.huber)
    means = ((q - lessons.outcomes) * shares).sum(1)
    value = nn.functional.smooth_l1_loss(means, torch.zeros_like(means))
    return (differences * shares).sum(1).mean() + settings.value_weight * value


def _best(lessons: Batch) -> torch.Tensor:
    """Of each state the best outcome."""
    return lessons.outcomes.masked_fill(~lessons.mask, -torch.inf).max(1).values


def regret(agent: Agent, lessons: Batch) -> dict[str, float]:
    """How much worse the greedy action is than the best one, in log seconds, at most 1: mean, and share above 0.01."""
    with torch.no_grad():
        taken = agent.online(lessons.features, lessons.mask).argmax(1, keepdim=True)
    lost = (_best(lessons) - lessons.outcomes.gather(1, taken).squeeze(1)).clamp(max=1.0)
    return {"mean": round(float(lost.mean()), 4), "above_1_percent": round(float((lost > 0.01).float().mean()), 4)}


def shrink(agent: Agent, settings: Settings) -> tuple[float, dict[str, dict[str, float]]]:
    """Scales what the network adds to the look-ahead by the factor that serves a validation set best.

    Returns:
      The factor, and of each factor how the plans of one greedy episode compare with those of the look-ahead alone
      (factor 0): mean of the logarithm of their ratio (each at most 1), and on how many models they are better and
      worse by more than 1 %.
    """
    rng = np.random.default_rng(settings.validation_seed)
    problems = [usable(rng, settings.distribution) for _ in range(settings.validation)]
    trained = {k: v.clone() for k, v in agent.online.state_dict().items()}
    costs = {}
    for factor in FACTORS:
        agent.online.load_state_dict(scaled(trained, factor))
        costs[factor] = np.array([greedy_cost(agent, model) for model in problems])
    gains = {}
    for factor, own in costs.items():
        more = np.clip(own - costs[0.0], -1, 1)
        gains[str(factor)] = {
            "mean_log_ratio": round(float(more.mean()), 4),
            "better": int((more < -0.01).sum()),
            "worse": int((more > 0.01).sum()),
        }
    best = min(FACTORS, key=lambda factor: gains[str(factor)]["mean_log_ratio"])
    agent.online.load_state_dict(scaled(trained, best))
    return best, gains


def scaled(weights: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    """The weights of a network whose heads give `factor` times as much."""
    heads = ("value.", "advantage.")
    return {name: value * factor if name.startswith(heads) else value for name, value in weights.items()}


def greedy_cost(agent: Agent, model: SyntheticModel) -> float:
    """Of the plan that one greedy episode ends with (`log_cost`)."""
    environment = Environment(Evaluator(model, PlanSpace(model.program, model.pins)))
    agent.roll_out(environment)
    return log_cost(model.estimate(environment.decision), model.memory_limit)


if __name__ == "__main__":
    sys.exit(main())
