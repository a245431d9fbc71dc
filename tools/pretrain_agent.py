"""Trains the agent on made-up models and writes the weights that come with the package, with their card.

    python tools/pretrain_agent.py                       # as the shipped weights were made: about ten minutes
    python tools/pretrain_agent.py --config my.yaml --out /tmp/weights

Models are drawn from the distributions of `search/synthetic.py`; `tools/pretrain_agent.yaml` holds every setting. A
held-out set, drawn from another seed and used for nothing else, says what the training brought: how far the plan of one
greedy episode is from the proven optimum, for the trained network, for the one it began with (the look-ahead alone) and
for one of random weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from safetensors.torch import save  # noqa: E402

from automap_launch.search.agent import Agent  # noqa: E402
from automap_launch.search.bandit import arms_of, begun  # noqa: E402
from automap_launch.search.config import AgentConfig  # noqa: E402
from automap_launch.search.environment import Environment  # noqa: E402
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd  # noqa: E402
from automap_launch.search.features import FEATURES  # noqa: E402
from automap_launch.search.local_search import climb  # noqa: E402
from automap_launch.search.oracle import Oracle  # noqa: E402
from automap_launch.search.searchers import simple_plans  # noqa: E402
from automap_launch.search.space import Partial, PlanSpace  # noqa: E402
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw  # noqa: E402
from automap_launch.search.weights import CARD, FOLDER, WEIGHTS  # noqa: E402

CONFIG = ROOT / "tools" / "pretrain_agent.yaml"
OUT = ROOT / "automap_launch" / "search" / FOLDER
FEWEST_PLANS = 100
FACTORS = (1.0, 0.5, 0.25, 0.12, 0.06)


@dataclass
class Settings:
    """How the agent is trained.

    Attributes:
      seed: of the models, the weights and the exploration.
      held_out_seed, validation_seed: of the models of the held-out set, and of those that the shrinking is chosen on.
      episodes: in all; none begins after `seconds`.
      pool: models at hand at a time. uses: episodes after which one is replaced by a new one.
      arm_share: of the episodes, how many begin with stages and micro-batches drawn at random.
      held_out, validation: models of either set. oracle_seconds: for the optimum of each.
    """

    seed: int = 0
    held_out_seed: int = 20_000
    episodes: int = 6000
    seconds: float = 540
    pool: int = 32
    uses: int = 60
    arm_share: float = 0.5
    held_out: int = 20
    validation_seed: int = 10_000
    validation: int = 16
    oracle_seconds: float = 15
    agent: AgentConfig = field(
        default_factory=lambda: AgentConfig(
            learning_rate=5e-4, epsilon_start=0.5, epsilon_end=0.1, epsilon_episodes=2000, target_interval=200
        )
    )
    distribution: Distribution = field(default_factory=Distribution)

    @classmethod
    def load(cls, file: Path) -> Settings:
        record = yaml.safe_load(file.read_text())
        ranges = {k: tuple(v) if isinstance(v, list) else v for k, v in record.pop("distribution", {}).items()}
        agent = AgentConfig(**record.pop("agent", {}))
        return cls(**record, agent=agent, distribution=Distribution(**ranges))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    settings = Settings.load(options.config)
    torch.set_num_threads(1)
    started = time.perf_counter()
    agent = Agent(settings.agent, settings.seed)
    untrained = {k: v.clone() for k, v in agent.online.state_dict().items()}
    episodes, models = train(agent, settings)
    seconds = time.perf_counter() - started
    factor = shrink(agent, settings)
    evaluation = evaluate(agent, untrained, settings)
    content = save({k: v.contiguous() for k, v in agent.online.state_dict().items()})
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / WEIGHTS).write_bytes(content)
    card = {
        "made_by": "tools/pretrain_agent.py",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "features": list(FEATURES),
        "hidden": settings.agent.hidden,
        "seconds": round(seconds),
        "episodes": episodes,
        "learning_steps": agent.learning_steps,
        "models": models,
        "shrunk_to": factor,
        "evaluation": evaluation,
        "settings": dataclasses.asdict(settings),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }
    (options.out / CARD).write_text(json.dumps(card, indent=1) + "\n")
    print(json.dumps({k: card[k] for k in ("seconds", "episodes", "learning_steps", "models", "evaluation")}, indent=1))
    return 0


def shrink(agent: Agent, settings: Settings) -> float:
    """Scales what the network adds to the look-ahead by the factor that serves a validation set best; returns it.

    What is learnt is small beside its own noise at first, and the look-ahead alone is a good policy.
    """
    problems = solved(settings, settings.validation_seed, settings.validation)
    trained = {k: v.clone() for k, v in agent.online.state_dict().items()}

    def cost(factor: float) -> float:
        agent.online.load_state_dict(scaled(trained, factor))
        gaps = [greedy_gap(agent, model, optimum) for model, optimum in problems]
        return float(np.mean([min(gap, 1.0) for gap in gaps]))

    costs = {factor: cost(factor) for factor in FACTORS}
    best = min(FACTORS, key=lambda factor: costs[factor])
    agent.online.load_state_dict(scaled(trained, best))
    return best


def scaled(weights: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    """The weights of a network whose heads give `factor` times as much."""
    heads = ("value.", "advantage.")
    return {name: value * factor if name.startswith(heads) else value for name, value in weights.items()}


class Classroom:
    """A model that the agent learns on; an episode begins at `start`."""

    def __init__(self, model: SyntheticModel) -> None:
        self.space = PlanSpace(model.program, model.pins)
        self.start: Partial = self.space.start()
        self.arms = arms_of(self.space)
        self.environment = Environment(Evaluator(model, self.space), lambda: self.start)
        self.uses = 0


def train(agent: Agent, settings: Settings) -> tuple[int, int]:
    """Trains the agent; returns the number of episodes and of models."""
    rng = np.random.default_rng(settings.seed)
    pool: list[Classroom] = []
    models = 0
    started, reported = time.perf_counter(), 0.0
    losses: list[float] = []
    for episode in range(settings.episodes):
        elapsed = time.perf_counter() - started
        if elapsed > settings.seconds:
            return episode, models
        if len(pool) < settings.pool:
            pool.append(Classroom(usable(rng, settings.distribution)))
            models += 1
        room = pool[-1] if episode < settings.pool else pool[rng.integers(len(pool))]
        by_arm = rng.random() < settings.arm_share
        room.start = begun(room.space, room.arms[rng.integers(len(room.arms))]) if by_arm else room.space.start()
        loss = agent.run_episode(room.environment)
        losses += [loss] if loss is not None else []
        room.uses += 1
        if room.uses >= settings.uses:
            pool.remove(room)
        if elapsed - reported > 30:
            reported = elapsed
            print(f"{elapsed:.0f} s, {episode} episodes, loss {np.mean(losses[-200:]):.5f}", flush=True)
    return settings.episodes, models


def usable(rng: np.random.Generator, distribution: Distribution) -> SyntheticModel:
    """A model with enough plans, of which a simple one fits."""
    while True:
        model = draw(rng, distribution)
        space = PlanSpace(model.program, model.pins)
        if space.size >= FEWEST_PLANS and any(e.fits for e in model.estimate_many(simple_plans(space))):
            return model


def solved(settings: Settings, seed: int, count: int) -> list[tuple[SyntheticModel, float]]:
    """Models with their proven optimum, in seconds a step."""
    rng = np.random.default_rng(seed)
    found: list[tuple[SyntheticModel, float]] = []
    while len(found) < count:
        model = usable(rng, settings.distribution)
        space = PlanSpace(model.program, model.pins)
        evaluator = Evaluator(model, space, Limits(seconds=settings.oracle_seconds))
        try:
            evaluator.estimate_many(simple_plans(space))
            assert evaluator.best is not None, "a simple plan fits"
            climb(evaluator, evaluator.best.decision)
            Oracle().run(evaluator, lambda event: None)
        except SearchEnd as end:
            if end.reason != "exhausted":
                continue
        found.append((model, evaluator.best.estimate.step_seconds))
    return found


def evaluate(agent: Agent, untrained: dict[str, torch.Tensor], settings: Settings) -> dict[str, object]:
    """The gap of one greedy episode's plan to the optimum: mean, and share of the models within 1 % and 5 %."""
    problems = solved(settings, settings.held_out_seed, settings.held_out)
    trained = {k: v.clone() for k, v in agent.online.state_dict().items()}
    generator = torch.Generator().manual_seed(settings.seed)
    scrambled = {k: torch.randn(v.shape, generator=generator) * 0.3 for k, v in trained.items()}
    report: dict[str, object] = {"models": len(problems)}
    for name, weights in (("trained", trained), ("look_ahead_alone", untrained), ("random_weights", scrambled)):
        agent.online.load_state_dict(weights)
        gaps = np.array([greedy_gap(agent, model, optimum) for model, optimum in problems])
        report[name] = {
            "median_gap": round(float(np.median(gaps)), 4),
            "within_1_percent": int((gaps <= 0.01).sum()),
            "within_5_percent": int((gaps <= 0.05).sum()),
            "fit": int(np.isfinite(gaps).sum()),
        }
    agent.online.load_state_dict(trained)
    return report


def greedy_gap(agent: Agent, model: SyntheticModel, optimum: float) -> float:
    """Of the plan that one greedy episode ends with; infinite when it does not fit."""
    space = PlanSpace(model.program, model.pins)
    environment = Environment(Evaluator(model, space))
    agent.roll_out(environment)
    estimate = model.estimate(environment.decision)
    return estimate.step_seconds / optimum - 1 if estimate.fits else float("inf")


if __name__ == "__main__":
    sys.exit(main())
