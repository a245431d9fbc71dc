"""Lessons, and what the agent learns of them."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig
from automap_launch.search.environment import Observation
from automap_launch.search.evaluator import log_cost
from automap_launch.search.features import FEATURES
from automap_launch.search.searchers import one_thread
from automap_launch.search.synthetic import Distribution
from automap_launch.search.weights import pretrained_agent
from tools import pretrain_agent
from tools.lessons import Classroom, Lesson, load_lessons, models_of, save_lessons, take_lessons
from tools.pretrain_agent import Batch, Settings

SMALL = {
    "any": Distribution(blocks=(3, 5), products=(1, 1), inner_groups=(1, 2), batch=(3, 3), hosts=(0, 0)),
    "convolution": Distribution(
        blocks=(3, 5), inner_groups=(1, 1), batch=(3, 3), hosts=(0, 0), kinds=(2, 2), trend=(4.0, 9.0)
    ),
}


@pytest.fixture(autouse=True)
def one_thread_only():
    with one_thread():
        yield


def taken(seed=0, models=2, later=0.3):
    rng = np.random.default_rng(seed)
    return list(take_lessons(rng, (model for _, model in models_of(rng, SMALL, models)), later))


def kind_of(state):
    row = state.features[state.mask][0]
    return next(name for name in FEATURES if name.startswith("is_") and row[FEATURES.index(name)])


def made_up(count, seed=0):
    """Lessons in which the action with the greater `bubble` is better by as much, and the look-ahead knows nothing."""
    rng = np.random.default_rng(seed)
    features = np.zeros((count, 3, len(FEATURES)), np.float32)
    told = features[..., FEATURES.index("bubble")] = rng.uniform(0, 1, (count, 3))
    mask = np.ones(3, bool)
    return [Lesson(k, Observation(features[k], mask), told[k].astype(np.float64)) for k in range(count)]


def test_outcomes_are_those_of_going_on_by_the_look_ahead():
    ((_, model),) = models_of(np.random.default_rng(3), {"any": SMALL["any"]}, 1)
    first = next(iter(take_lessons(np.random.default_rng(0), iter([model]), 0.0)))
    room = Classroom(model)
    alone = room.greedy_cost(Agent(AgentConfig()))
    room.start = room.space.start()
    state = room.environment.reset()
    np.testing.assert_array_equal(first.state.features, state.features)
    greedy = int(np.where(state.mask, state.features[:, 0], -np.inf).argmax())
    assert np.isnan(first.outcomes[~state.mask]).all()
    for action in np.flatnonzero(state.mask).tolist():
        room.environment.reset()
        _, following = room.environment.step(action)
        while following is not None:
            _, following = room.environment.step(Agent(AgentConfig()).act(following))
        cost = log_cost(model.estimate(room.environment.decision), model.memory_limit)
        assert first.outcomes[greedy] - first.outcomes[action] == pytest.approx(cost - alone, abs=1e-5)


def test_lessons_are_of_the_first_decisions_and_of_some_of_the_rest():
    kinds = [kind_of(lesson.state) for lesson in taken(later=1.0)]
    assert {"is_stages", "is_micro_batches"} < set(kinds)
    firsts = [kind_of(lesson.state) for lesson in taken(later=0.0)]
    assert set(firsts) <= {"is_stages", "is_micro_batches"}
    assert firsts.count("is_stages") <= 2  # once a model


def test_the_same_seed_gives_the_same_lessons_and_they_can_be_kept(tmp_path):
    lessons = taken()
    save_lessons(tmp_path / "lessons.npz", lessons, 12.5)
    kept, seconds = load_lessons(tmp_path / "lessons.npz")
    assert seconds == 12.5
    for one, other in zip(kept, taken(), strict=True):
        assert one.model == other.model
        np.testing.assert_array_equal(one.state.features, other.state.features)
        np.testing.assert_array_equal(one.state.mask, other.state.mask)
        np.testing.assert_array_equal(one.outcomes, other.outcomes)
    assert load_lessons(tmp_path / "none.npz") == ([], 0.0)


def test_what_pays_is_learnt_and_where_nothing_pays_the_look_ahead_is_kept():
    settings = Settings(steps=80, batch=32, noise=0.0)
    agent = pretrain_agent.fitted(Batch.packed(made_up(200)), settings, 0)
    fresh = made_up(40, seed=1)
    lost = [float(max(x.outcomes) - x.outcomes[agent.act(x.state)]) for x in fresh]
    unlearnt = [float(max(x.outcomes) - x.outcomes[0]) for x in fresh]  # all rewards are alike: the first is taken
    assert np.mean(lost) < 0.2 * np.mean(unlearnt)
    alike = [dataclasses.replace(x, outcomes=np.zeros(3)) for x in made_up(200)]
    agent = pretrain_agent.fitted(Batch.packed(alike), settings, 0)
    with torch.no_grad():
        assert float(agent.online.advantage.weight.abs().max()) < 1e-6


def test_one_command_makes_weights_that_load_with_their_card(tmp_path, monkeypatch, capsys):
    ranges = {name: dataclasses.asdict(own) for name, own in SMALL.items()}
    config = {"models": 9, "candidates": 2, "steps": 5, "batch": 8, "validation": 2, "test": 2, "distributions": ranges}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config))
    monkeypatch.setattr(pretrain_agent, "LESSONS", tmp_path / "lessons.npz")
    monkeypatch.setattr("sys.argv", ["pretrain_agent", "--config", str(file), "--out", str(tmp_path / "weights")])
    assert pretrain_agent.main() == 0
    agent = pretrained_agent(AgentConfig(), 0, tmp_path / "weights")
    card = json.loads((tmp_path / "weights" / "agent.json").read_text())
    assert len(card["evaluation"]["validation"]) == 2
    assert card["evaluation"]["test"]["models"] == 2
    again = pretrain_agent.fitted(
        Batch.packed([x for x in load_lessons(tmp_path / "lessons.npz")[0] if x.model % pretrain_agent.LEFT_OUT]),
        Settings.load(file),
        1 + card["candidate"],
    )
    for one, other in zip(agent.online.parameters(), again.online.parameters(), strict=True):
        assert torch.equal(one, other)
