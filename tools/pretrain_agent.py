"""Trains the agent on made-up models and writes the weights that come with the package, with their card.

    python tools/pretrain_agent.py                       # as the shipped weights were made: half an hour of CPU
    python tools/pretrain_agent.py --config my.yaml --out /tmp/weights

Models are drawn from the distributions of `search/synthetic.py`; `tools/pretrain_agent.yaml` holds every setting.
`tools/lessons.py` tells what the agent learns from: states with the outcome of each of their actions. What is lowered
is the *regret* that is to be expected of the policy that takes actions by the softmax of their Q: how much worse the
action is than the best one. So it learns where it pays to leave the look-ahead, and nothing pulls it away elsewhere;
trained to say the outcomes themselves, it errs where two of them are close and the look-ahead does not.

Lessons are kept in `outputs/pretrain/`. One model in eight is left out of the training, and tells the regret beyond it.
Of several networks the one is taken whose greedy episodes end with the best plans on the models of a validation set,
and models of a test set, which nothing is chosen by, tell how it compares with the look-ahead.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Sequence
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

from automap_launch.search.agent import GRADIENT_NORM, Agent, collate  # noqa: E402
from automap_launch.search.config import AgentConfig  # noqa: E402
from automap_launch.search.features import FEATURES  # noqa: E402
from automap_launch.search.network import MASKED  # noqa: E402
from automap_launch.search.space import KINDS  # noqa: E402
from automap_launch.search.synthetic import Distribution  # noqa: E402
from automap_launch.search.weights import CARD, FOLDER, WEIGHTS  # noqa: E402
from tools.lessons import Classroom, Lesson, load_lessons, models_of, save_lessons, take_lessons  # noqa: E402

CONFIG = ROOT / "tools" / "pretrain_agent.yaml"
OUT = ROOT / "automap_launch" / "search" / FOLDER
LESSONS = ROOT / "outputs" / "pretrain" / "lessons.npz"
LEFT_OUT = 8


@dataclass
class Settings:
    """How the agent is trained.

    Attributes:
      seed: of the models, the first candidate's weights and the order of lessons. validation_seed, test_seed: of these
        sets' models.
      models: that lessons are taken from. later: the share of decisions after stages and micro-batches, of those on the
        way of a plan, that a lesson is taken at.
      candidates: networks that are trained, of which validation takes one.
      steps, batch, learning_rate, weight_decay: of the gradient descent (AdamW, cosine decay).
      temperature: of the softmax, in log seconds. clip: a greater regret counts no more (log seconds).
      noise: standard deviation of the factors that features are blurred by, all but the reward.
      validation, test: models.
      distributions: what models are drawn from, in turn.
    """

    seed: int = 1
    validation_seed: int = 10_000
    test_seed: int = 20_000
    models: int = 3600
    later: float = 0.08
    candidates: int = 8
    steps: int = 3000
    batch: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 0.3
    temperature: float = 0.1
    clip: float = 0.5
    noise: float = 0.1
    validation: int = 200
    test: int = 200
    agent: AgentConfig = field(default_factory=AgentConfig)
    distributions: dict[str, Distribution] = field(default_factory=lambda: {"any": Distribution()})

    @classmethod
    def load(cls, file: Path) -> Settings:
        record = yaml.safe_load(file.read_text())
        agent = AgentConfig(**record.pop("agent", {}))
        named = {name: _distribution(ranges) for name, ranges in record.pop("distributions").items()}
        return cls(**record, agent=agent, distributions=named)


@dataclass(frozen=True)
class Batch:
    """Lessons as tensors, padded with masked actions; [lessons, actions].

    `regret`: how much worse the outcome of each action is than the best one of its state; 0 where masked.
    """

    features: torch.Tensor
    mask: torch.Tensor
    regret: torch.Tensor

    @classmethod
    def packed(cls, lessons: Sequence[Lesson]) -> Batch:
        features, mask = collate([lesson.state for lesson in lessons])
        regret = torch.zeros(mask.shape)
        for row, lesson in zip(regret, lessons, strict=True):
            behind = np.nanmax(lesson.outcomes) - lesson.outcomes
            row[: len(behind)] = torch.from_numpy(np.nan_to_num(behind))
        return cls(features, mask, regret)

    def of(self, places: torch.Tensor) -> Batch:
        mask = self.mask[places]
        widest = int(mask.any(0).nonzero().max()) + 1
        return Batch(*(part[places][:, :widest] for part in (self.features, self.mask, self.regret)))


@dataclass(frozen=True)
class Examination:
    """Models that whole greedy episodes are compared on.

    Attributes:
      names: of the models' distributions. alone: costs of the plans of the look-ahead alone (`log_cost`).
    """

    names: list[str]
    rooms: list[Classroom]
    alone: npt.NDArray[np.float64]

    @classmethod
    def drawn(cls, seed: int, count: int, distributions: dict[str, Distribution]) -> Examination:
        named = list(models_of(np.random.default_rng(seed), distributions, count))
        rooms, untrained = [Classroom(model) for _, model in named], Agent(AgentConfig())
        return cls([name for name, _ in named], rooms, np.array([room.greedy_cost(untrained) for room in rooms]))

    def taken_by(self, agent: Agent) -> dict[str, Any]:
        """How the agent's plans compare with the look-ahead's: the logarithm of their ratio, each at most 1.

        Returns:
          Its mean with the half of a 95 % confidence interval over models, its mean by distribution, and on how many
          models the plans are better and worse by more than 1 %.
        """
        more = np.clip([room.greedy_cost(agent) for room in self.rooms] - self.alone, -1, 1)
        return {
            "models": len(more),
            "mean_log_ratio": round(float(more.mean()), 4),
            "confidence": round(float(1.96 * more.std(ddof=1) / len(more) ** 0.5), 4),
            "better": int((more < -0.01).sum()),
            "worse": int((more > 0.01).sum()),
            "by_distribution": {
                name: round(float(more[[own == name for own in self.names]].mean()), 4)
                for name in dict.fromkeys(self.names)
            },
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--again", action="store_true", help="with new lessons, also where some are kept")
    options = parser.parse_args()
    settings = Settings.load(options.config)
    torch.set_num_threads(1)
    lessons, seconds = ([], 0.0) if options.again else load_lessons(LESSONS)
    kept = bool(lessons)
    if not kept:
        lessons, seconds = _taken(settings)
        save_lessons(LESSONS, lessons, seconds)
    learnt = Batch.packed([lesson for lesson in lessons if lesson.model % LEFT_OUT])
    left_out = [lesson for lesson in lessons if lesson.model % LEFT_OUT == 0]
    began = time.process_time()
    agents = [fitted(learnt, settings, settings.seed + number) for number in range(settings.candidates)]
    fitting = time.process_time() - began
    validation = Examination.drawn(settings.validation_seed, settings.validation, settings.distributions)
    marks = [validation.taken_by(agent) for agent in agents]
    best = min(range(len(agents)), key=lambda number: marks[number]["mean_log_ratio"])
    test = Examination.drawn(settings.test_seed, settings.test, settings.distributions)
    marked = test.taken_by(agents[best])
    rest = time.process_time() - fitting - (0.0 if kept else seconds)
    content = save({k: v.contiguous() for k, v in agents[best].online.state_dict().items()})
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
        "candidate": best,
        "cpu_seconds": {"lessons": round(seconds), "fitting": round(fitting), "rest": round(rest)},
        "evaluation": {
            "regret_before": regrets(Agent(settings.agent), left_out),
            "regret_after": regrets(agents[best], left_out),
            "validation": marks,
            "test": marked,
        },
        "settings": dataclasses.asdict(settings),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }
    (options.out / CARD).write_text(json.dumps(card, indent=1) + "\n")
    print(json.dumps({k: card[k] for k in ("models", "lessons", "candidate", "evaluation")}, indent=1))
    return 0


def _taken(settings: Settings) -> tuple[list[Lesson], float]:
    """All lessons, and the CPU seconds that they took."""
    began, lessons, rng = time.process_time(), [], np.random.default_rng(settings.seed)
    models = (model for _, model in models_of(rng, settings.distributions, settings.models))
    for lesson in take_lessons(rng, models, settings.later):
        lessons.append(lesson)
        if len(lessons) % 500 == 0:
            print(f"{len(lessons)} lessons of {lesson.model + 1} models", flush=True)
    return lessons, time.process_time() - began


def fitted(lessons: Batch, settings: Settings, seed: int) -> Agent:
    """An agent whose network has learnt the lessons."""
    agent, generator = Agent(settings.agent, seed), torch.Generator().manual_seed(seed)
    network = agent.online
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    for _ in range(settings.steps):
        own = lessons.of(torch.randint(len(lessons.mask), (settings.batch,), generator=generator))
        blurred = own.features * (1 + settings.noise * torch.randn(own.features.shape, generator=generator))
        blurred[..., 0] = own.features[..., 0]  # the reward, which is passed through
        optimizer.zero_grad()
        torch.autograd.backward(_expected_regret(network(blurred, own.mask), own, settings))
        nn.utils.clip_grad_norm_(network.parameters(), GRADIENT_NORM)
        optimizer.step()
        schedule.step()
    return agent


def _expected_regret(q: torch.Tensor, lessons: Batch, settings: Settings) -> torch.Tensor:
    """Of the policy that takes actions by the softmax of `q`, on average over the lessons."""
    policy = torch.softmax(q.masked_fill(~lessons.mask, MASKED) / settings.temperature, 1)
    return (policy * lessons.regret.clamp(max=settings.clip)).sum(1).mean()


def regrets(agent: Agent, lessons: Sequence[Lesson]) -> dict[str, dict[str, float]]:
    """By kind of decision: lessons, and how much worse the greedy action is than the best one, at most 1 (log)."""
    found: dict[str, list[float]] = {}
    places = [FEATURES.index(f"is_{kind}") for kind in KINDS]
    for lesson in lessons:
        kind = KINDS[int(lesson.state.features[lesson.state.mask][0, places].argmax())]
        lost = float(np.nanmax(lesson.outcomes) - lesson.outcomes[agent.act(lesson.state)])
        found.setdefault(kind, []).append(min(lost, 1.0))
    return {
        kind: {"lessons": len(found[kind]), "mean": round(float(np.mean(found[kind])), 4)}
        for kind in KINDS
        if kind in found
    }


def _distribution(record: dict[str, Any]) -> Distribution:
    ranges: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record.items()}
    return Distribution(**ranges)


if __name__ == "__main__":
    sys.exit(main())
