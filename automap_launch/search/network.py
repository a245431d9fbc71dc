"""The Q-network: dueling, over the features of each action instead of over a fixed list of actions."""

from __future__ import annotations

import math

import torch
from torch import nn

# Q of an action that must not be taken: below any real value, and finite, so that no NaN can come of it.
MASKED = -1e9
REWARD_FEATURE = 0


class QNetwork(nn.Module):
    """Q(s, a) = reward(a) + V(s) + A(s, a) - mean of A over the valid actions (Wang et al., 2016).

    The state is seen as the mean of its valid actions' hidden features. Feature 0 of an action is its immediate
    reward and is passed through, so that the network learns what comes after it: with the last layers at zero, as
    they begin, the greedy policy is the one of the look-ahead.
    """

    def __init__(self, features: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _linear(features, hidden, generator), nn.ReLU(), _linear(hidden, hidden, generator), nn.ReLU()
        )
        self.value = _linear(hidden, 1, generator)
        self.advantage = _linear(2 * hidden, 1, generator)
        for head in (self.value, self.advantage):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Q-values [states, actions], `MASKED` where `mask` is False.

        Args:
          features: float32[states, actions, features]. mask: bool[states, actions].
        """
        hidden = self.body(features)
        weights = (mask / mask.sum(1, keepdim=True).clamp(min=1)).unsqueeze(-1)
        state = (hidden * weights).sum(1)
        context = state.unsqueeze(1).expand_as(hidden)
        advantage = self.advantage(torch.cat([hidden, context], -1))
        centred = advantage - (advantage * weights).sum(1, keepdim=True)
        q = features[..., REWARD_FEATURE] + (self.value(state).unsqueeze(1) + centred).squeeze(-1)
        masked: torch.Tensor = q.masked_fill(~mask, MASKED)
        return masked


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    # By way of `meta`, since the constructor would draw from torch's global generator, which is not ours to advance.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(inputs)
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
