"""The weights that come with the package, and their card."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import automap_launch.search
from automap_launch.errors import ConfigError
from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig
from automap_launch.search.environment import Environment
from automap_launch.search.evaluator import Evaluator, log_cost
from automap_launch.search.features import FEATURES
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw
from automap_launch.search.weights import CARD, FOLDER, WEIGHTS, pretrained_agent

SHIPPED = Path(automap_launch.search.__file__).parent / FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / FOLDER))


def test_the_shipped_weights_are_those_of_their_card_and_small():
    card, content = json.loads((SHIPPED / CARD).read_text()), (SHIPPED / WEIGHTS).read_bytes()
    assert card["sha256"] == hashlib.sha256(content).hexdigest()
    assert len(content) <= 2 * 2**20
    assert card["features"] == list(FEATURES)
    assert {"lessons", "cpu_seconds", "settings", "evaluation", "versions"} <= set(card)


def test_an_agent_begins_with_them_and_learns_on():
    agent, fresh = pretrained_agent(AgentConfig(), seed=0), Agent(AgentConfig(), seed=0)
    pairs = zip(agent.online.parameters(), fresh.online.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    for a, b in zip(agent.online.parameters(), agent.target.parameters(), strict=True):
        assert torch.equal(a, b)
    assert agent.episodes == 0


def test_damaged_weights_are_refused(folder):
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(bytes(content))
    with pytest.raises(ConfigError, match="damaged"):
        pretrained_agent(AgentConfig(), 0, folder)


def test_weights_of_another_network_are_refused(folder):
    with pytest.raises(ConfigError, match="hidden=64"):
        pretrained_agent(AgentConfig(hidden=32), 0, folder)
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, "features": card["features"][1:]}))
    with pytest.raises(ConfigError, match="features"):
        pretrained_agent(AgentConfig(), 0, folder)


def plan_cost(agent: Agent, model: SyntheticModel) -> float:
    """Of the plan that one greedy episode ends with."""
    environment = Environment(Evaluator(model, PlanSpace(model.program, model.pins)))
    agent.roll_out(environment)
    return log_cost(model.estimate(environment.decision), model.memory_limit)


def test_random_weights_in_place_of_the_shipped_ones_find_worse_plans():
    generator = torch.Generator().manual_seed(0)
    shipped, scrambled = pretrained_agent(AgentConfig(), 0), Agent(AgentConfig(), 0)
    with torch.no_grad():
        for parameter in scrambled.online.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    models = [draw(np.random.default_rng(seed), Distribution(hosts=(1, 2))) for seed in range(500, 508)]
    worse = [plan_cost(scrambled, model) - plan_cost(shipped, model) for model in models]
    assert np.mean(worse) > 0.2, worse
    assert sum(w > 0.01 for w in worse) >= 6, worse
