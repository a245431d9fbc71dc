"""The DQN agent: double (van Hasselt et al., 2016), dueling, n-step, with prioritised replay.

Invalid actions are masked in the three places where an action is taken: the greedy one, the random one, and the
maximum over the next state's actions in the target. All randomness is the agent's own, so that a run depends on its
seed alone and goes on from a checkpoint as if it had never stopped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from automap_launch.search.config import AgentConfig
from automap_launch.search.environment import Observation, SupportsEpisodes
from automap_launch.search.features import FEATURES
from automap_launch.search.network import MASKED, QNetwork
from automap_launch.search.replay import PrioritisedReplay, Step, Transition, transitions_of

# Temporal-difference errors beyond it (in log seconds) pull linearly: a plan that does not fit is an outlier. Below it
# the mean is learnt; a smaller one would learn the median, which does not see what pays only now and then.
HUBER_BETA = 1.0
GRADIENT_NORM = 5.0


class Agent:
    """Learns which decision lowers the predicted step time most, from episodes in an environment.

    Args:
      features: the length of an action's feature vector.
      seed: of the weights, of exploration and of sampling.
    """

    def __init__(self, config: AgentConfig, seed: int = 0, features: int = len(FEATURES)) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        self.online = QNetwork(features, config.hidden, generator)
        self.target = QNetwork(features, config.hidden, generator).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=config.learning_rate)
        self.replay = PrioritisedReplay(config.replay_capacity, config.priority_exponent, config.importance_exponent)
        self.rng = np.random.default_rng(seed)
        self.episodes = 0
        self.round_start = 0  # the episode at which exploration last began
        self.learning_steps = 0

    @property
    def epsilon(self) -> float:
        """The share of random decisions: falls linearly over `epsilon_episodes` from the start of the round."""
        config = self.config
        done = min((self.episodes - self.round_start) / config.epsilon_episodes, 1.0)
        return config.epsilon_start + done * (config.epsilon_end - config.epsilon_start)

    def explore_anew(self) -> None:
        """Begins a new round: epsilon starts from the top, what was learnt stays."""
        self.round_start = self.episodes

    def q_values(self, observation: Observation) -> npt.NDArray[np.float32]:
        """float32[actions]; `MASKED` for invalid ones."""
        with torch.no_grad():
            q = self.online(torch.from_numpy(observation.features)[None], torch.from_numpy(observation.mask)[None])
        values: npt.NDArray[np.float32] = q[0].numpy()
        return values

    def act(self, observation: Observation, epsilon: float = 0.0) -> int:
        """A valid action: the one of highest Q, or with probability `epsilon` any."""
        if self.rng.random() < epsilon:
            return int(self.rng.choice(np.flatnonzero(observation.mask)))
        return int(np.where(observation.mask, self.q_values(observation), -np.inf).argmax())

    def roll_out(self, environment: SupportsEpisodes) -> float:
        """One episode of the best actions, without learning; returns its reward."""
        total = 0.0
        observation = environment.reset()
        while observation is not None:
            reward, observation = environment.step(self.act(observation))
            total += reward
        return total

    def run_episode(self, environment: SupportsEpisodes) -> float | None:
        """One episode of exploring and learning; returns the mean loss of its learning steps, if there were any."""
        losses = []
        episode = []
        epsilon = self.epsilon
        observation = environment.reset()
        while observation is not None:
            explored = self.rng.random() < epsilon
            action = self.act(observation, epsilon=float(explored))
            reward, following = environment.step(action)
            episode.append(Step(observation, action, reward, explored))
            if len(self.replay) >= max(self.config.learning_starts, self.config.batch_size):
                losses += [self.learn() for _ in range(self.config.updates_per_decision)]
            observation = following
        self.replay.add(transitions_of(episode, self.config.n_step, self.config.discount))
        self.episodes += 1
        return float(np.mean(losses)) if losses else None

    def learn(self) -> float:
        """One gradient step on a batch from the replay; returns its loss."""
        indices, transitions, importance = self.replay.sample(self.config.batch_size, self.rng)
        states, masks = collate([t.state for t in transitions])
        actions = torch.tensor([t.action for t in transitions]).unsqueeze(1)
        q = self.online(states, masks).gather(1, actions).squeeze(1)
        errors = self.targets(transitions) - q
        losses = nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none", beta=HUBER_BETA)
        loss = (losses * torch.from_numpy(importance)).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.online.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        self.replay.update(indices, errors.detach().numpy())
        self.learning_steps += 1
        if self.learning_steps % self.config.target_interval == 0:
            self.target.load_state_dict(self.online.state_dict())
        return float(loss.detach())

    def targets(self, transitions: list[Transition]) -> torch.Tensor:
        """float32[transitions]: reward, and the discounted value of what follows where something does.

        Plans and costs are deterministic, so what an episode got is within reach again: a target is never below it
        (He et al., 2017, optimality tightening). Nor is the value of what follows below zero, since the plan that a
        potential was read from can still be reached.
        """
        targets = torch.tensor([t.reward for t in transitions], dtype=torch.float32)
        going = [i for i, t in enumerate(transitions) if t.following is not None]
        if going:
            features, mask = collate([t.following for t in transitions if t.following is not None])
            discounts = torch.tensor([transitions[i].discount for i in going], dtype=torch.float32)
            with torch.no_grad():
                value = double_value(self.online(features, mask), self.target(features, mask), mask)
            targets[going] += discounts * value.clamp(min=0)
        return torch.maximum(targets, torch.tensor([t.outcome for t in transitions], dtype=torch.float32))


def double_value(online: torch.Tensor, target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The target network's value [states] of the valid action that the online network prefers.

    Args:
      online, target: Q-values [states, actions]. mask: bool[states, actions].
    """
    best = online.masked_fill(~mask, MASKED).argmax(1, keepdim=True)
    return target.gather(1, best).squeeze(1)


def collate(observations: list[Observation]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [states, actions, features] and mask [states, actions], padded with masked actions."""
    actions = max(len(o.mask) for o in observations)
    features = np.zeros((len(observations), actions, observations[0].features.shape[1]), np.float32)
    mask = np.zeros((len(observations), actions), bool)
    for i, observation in enumerate(observations):
        features[i, : len(observation.mask)] = observation.features
        mask[i, : len(observation.mask)] = observation.mask
    return torch.from_numpy(features), torch.from_numpy(mask)
