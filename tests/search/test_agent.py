import dataclasses

import numpy as np
import pytest
import torch

from automap_launch.search.agent import Agent, collate, double_value
from automap_launch.search.checkpoint import ARRAYS, RECORD, load_agent, save_agent
from automap_launch.search.config import AgentConfig
from automap_launch.search.environment import Observation
from automap_launch.search.features import FEATURES
from automap_launch.search.network import MASKED, QNetwork
from automap_launch.search.replay import Transition

SMALL = AgentConfig(hidden=16, batch_size=8, learning_starts=8, target_interval=5, epsilon_episodes=20)


class Corridor:
    """Three decisions between left (+0 each) and right (-0.1 each, +1 for all three); the third action is forbidden."""

    def __init__(self, features: int = len(FEATURES)) -> None:
        self.features = features
        self.taken: list[int] = []

    def reset(self) -> Observation:
        self.taken = []
        return self._observation()

    def step(self, action: int) -> tuple[float, Observation | None]:
        assert action != 2, "a masked action was taken"
        self.taken.append(action)
        reward = -0.1 * (action == 1)
        if len(self.taken) == 3:
            return reward + 1.0 * (self.taken == [1, 1, 1]), None
        return reward, self._observation()

    def _observation(self) -> Observation:
        features = np.zeros((3, self.features), np.float32)
        features[:, 1] = len(self.taken) / 3
        features[:, 2] = sum(self.taken) / 3
        features[1, 3] = features[2, 4] = 1
        return Observation(features, np.array([True, True, False]))


def prefer_masked(agent: Agent) -> None:
    """Makes Q of the forbidden action of `Corridor` the highest by far, before the mask."""
    for network in (agent.online, agent.target):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
            network.body[0].weight[0, 4] = 1.0
            network.body[2].weight[0, 0] = 1.0
            network.advantage.weight[0, 0] = 100.0


def test_the_greedy_action_is_never_masked():
    agent = Agent(SMALL)
    prefer_masked(agent)
    observation = Corridor().reset()
    unmasked = dataclasses.replace(observation, mask=np.ones(3, bool))
    assert agent.act(unmasked) == 2
    assert agent.act(observation) != 2


def test_random_actions_are_valid_and_all_valid_ones_are_taken():
    agent = Agent(SMALL)
    taken = [agent.act(Corridor().reset(), epsilon=1.0) for _ in range(200)]
    assert set(taken) == {0, 1}
    assert 60 < sum(taken) < 140


def test_whole_episodes_keep_to_the_mask_whatever_the_network_prefers():
    agent = Agent(dataclasses.replace(SMALL, learning_rate=1e-12))
    prefer_masked(agent)
    for _ in range(30):  # `Corridor.step` fails on a masked action
        agent.run_episode(Corridor())


def test_double_target_takes_the_online_networks_choice_at_the_target_networks_value():
    online = torch.tensor([[1.0, 5.0, 9.0], [4.0, 3.0, 9.0]])
    target = torch.tensor([[10.0, 20.0, 99.0], [30.0, 40.0, 99.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert double_value(online, target, mask).tolist() == [20.0, 99.0]


def test_targets_by_hand_ignore_masked_actions_of_the_next_state():
    agent = Agent(SMALL)
    prefer_masked(agent)
    following = Corridor().reset()
    features = following.features.copy()
    features[:, 0] = [3.0, 7.0, 0.0]  # the reward feature passes through: Q = 3, 7 and, masked, about 100
    following = Observation(features, following.mask)
    done = Transition(following, 0, 1.5, 1.0, None, 1.5)
    going = Transition(following, 0, 1.5, 0.5, following, 0.0)
    lucky = Transition(following, 0, 1.5, 0.5, following, 20.0)
    assert agent.targets([done, going, lucky]).tolist() == pytest.approx([1.5, 1.5 + 0.5 * 7.0, 20.0])


def test_masked_actions_do_not_move_the_q_values_of_others():
    network = QNetwork(5, 8, torch.Generator().manual_seed(0))
    torch.nn.init.normal_(network.advantage.weight)
    torch.nn.init.normal_(network.value.weight)
    one = Observation(np.ones((2, 5), np.float32), np.array([True, True]))
    odd = np.concatenate([one.features, np.full((1, 5), 50.0, np.float32)])
    padded = Observation(odd, np.array([True, True, False]))
    alone, with_masked = network(*collate([one])), network(*collate([padded]))
    torch.testing.assert_close(alone[0], with_masked[0, :2])
    assert with_masked[0, 2] == MASKED


def test_advantages_are_centred_on_the_value():
    network = QNetwork(5, 8, torch.Generator().manual_seed(0))
    torch.nn.init.normal_(network.advantage.weight)
    features = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(1))
    features[..., 0] = 0
    q = network(features, torch.ones(1, 4, dtype=torch.bool))
    assert q.std().item() > 0.01
    assert q.mean().item() == pytest.approx(0.0, abs=1e-4)  # the value's head begins at zero


def test_at_the_start_the_policy_is_the_look_aheads():
    features = np.random.default_rng(0).normal(size=(3, len(FEATURES))).astype(np.float32)
    features[:, 0] = [0.1, 0.3, 0.2]
    assert Agent(SMALL).act(Observation(features, np.ones(3, bool))) == 1


def test_it_learns_what_pays_only_in_the_end():
    agent = Agent(dataclasses.replace(SMALL, epsilon_start=0.9, epsilon_episodes=120), seed=1)
    environment = Corridor()
    for _ in range(200):
        agent.run_episode(environment)
    agent.config = dataclasses.replace(agent.config, epsilon_start=0.0, epsilon_end=0.0)
    agent.run_episode(environment)
    assert environment.taken == [1, 1, 1]


def test_epsilon_falls_linearly_and_starts_anew():
    agent = Agent(AgentConfig(epsilon_start=0.8, epsilon_end=0.2, epsilon_episodes=10))
    seen = []
    for agent.episodes in (0, 5, 10, 50):
        seen.append(agent.epsilon)
    assert seen == pytest.approx([0.8, 0.5, 0.2, 0.2])
    agent.explore_anew()
    assert agent.epsilon == pytest.approx(0.8)


def test_same_seed_same_weights_and_torchs_own_generator_is_left_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    agents = [Agent(SMALL, seed=seed) for seed in (3, 3, 4)]
    for agent in agents:
        for _ in range(10):
            agent.run_episode(Corridor())
    weights = [torch.cat([p.flatten() for p in agent.online.parameters()]) for agent in agents]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(before, torch.get_rng_state())


def test_an_agent_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(tmp_path):
    agent = Agent(dataclasses.replace(SMALL, replay_capacity=30), seed=2)  # the replay has wrapped around
    for _ in range(15):
        agent.run_episode(Corridor())
    save_agent(agent, tmp_path)
    copy = load_agent(tmp_path)
    losses = [[a.run_episode(Corridor()) for _ in range(15)] for a in (agent, copy)]
    assert losses[0] == losses[1]
    for one, other in zip(agent.online.parameters(), copy.online.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (agent.episodes, agent.learning_steps, agent.epsilon) == (copy.episodes, copy.learning_steps, copy.epsilon)


def test_an_agent_that_has_seen_nothing_can_be_saved(tmp_path):
    agent = Agent(SMALL, seed=5)
    save_agent(agent, tmp_path)
    copy = load_agent(tmp_path)
    assert [copy.run_episode(Corridor()) for _ in range(5)] == [agent.run_episode(Corridor()) for _ in range(5)]


def test_checkpoints_of_another_schema_or_with_a_part_missing_are_refused(tmp_path):
    save_agent(Agent(SMALL), tmp_path)
    record = tmp_path / RECORD
    record.write_text(record.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(ValueError, match="schema 9"):
        load_agent(tmp_path)
    (tmp_path / ARRAYS).unlink()
    record.write_text(record.read_text().replace('"schema": 9', '"schema": 1'))
    with pytest.raises(FileNotFoundError):
        load_agent(tmp_path)
