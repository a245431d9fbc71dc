"""The config group `search`."""

from __future__ import annotations

from dataclasses import dataclass, field

from automap_launch.units import parse_duration

METHODS = ("dqn", "random", "heuristic")


@dataclass
class PinConfig:
    """Decisions that the user takes himself; the search keeps to them. Null: free.

    Attributes:
      data, model: sizes of the mesh axes.
      storage: `none`, `optimizer` or `state` (ZeRO).
      stages, micro_batches, schedule: of the pipeline; with one stage, gradients are accumulated over micro-batches.
      cuts: the first blocks of all stages but the first (mode=plan shows the blocks).
      groups: by the path of one of a group's parameters, the axis that shards it (`model`), or null for none.
    """

    data: int | None = None
    model: int | None = None
    storage: str | None = None
    stages: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    cuts: list[int] | None = None
    groups: dict[str, str | None] | None = None


@dataclass
class AgentConfig:
    """The DQN (`search/agent.py`).

    Attributes:
      hidden: width of the Q-network's two hidden layers.
      learning_rate: of Adam. discount: of later rewards; 1 because an episode ends with its plan.
      n_step: rewards summed before the target network's estimate of the rest takes over.
      batch_size: transitions a learning step. replay_capacity: transitions kept.
      priority_exponent, importance_exponent: alpha and beta of prioritised replay; 0 is uniform, uncorrected.
      learning_starts: transitions seen before the first learning step.
      updates_per_decision: learning steps after each decision.
      target_interval: learning steps between two copies of the network into the target network.
      epsilon_start, epsilon_end, epsilon_episodes: share of random decisions, falling linearly over so many episodes.
        It is counted in episodes, not in seconds, so that the sequence of plans never depends on the clock.
      round_episodes: the agent is done when so many episodes after its exploration brought nothing better.
    """

    hidden: int = 64
    learning_rate: float = 1e-3
    discount: float = 1.0
    n_step: int = 5
    batch_size: int = 64
    replay_capacity: int = 20_000
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    learning_starts: int = 64
    updates_per_decision: int = 2
    target_interval: int = 100
    epsilon_start: float = 0.2
    epsilon_end: float = 0.05
    epsilon_episodes: int = 30
    round_episodes: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_end <= self.epsilon_start <= 1:
            raise ValueError(
                "search.agent needs 0 <= epsilon_end <= epsilon_start <= 1, "
                f"got {self.epsilon_end} and {self.epsilon_start}"
            )
        if not 0 < self.discount <= 1:
            raise ValueError(f"search.agent.discount is above 0 and at most 1, got {self.discount}")
        counts = (
            "hidden",
            "n_step",
            "batch_size",
            "updates_per_decision",
            "target_interval",
            "epsilon_episodes",
            "round_episodes",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"search.agent.{name} is at least 1, got {getattr(self, name)}")
        if self.replay_capacity < self.batch_size:
            raise ValueError(
                f"search.agent.replay_capacity ({self.replay_capacity}) holds at least one batch ({self.batch_size})"
            )


@dataclass
class SearchConfig:
    """How a plan is looked for.

    Attributes:
      method: `dqn`, `random`, or `heuristic` (the baselines alone).
      budget: the search ends after this time at the latest.
      patience: it ends early when the best has not moved for this share of the budget.
      max_evaluations: it ends after this many evaluated plans; with it the result depends on `seed` alone.
      sweep_limit: when the agent is done or out of patience and at most this many plans are left, all of them are
        tried, which proves the best one optimal; with more left, the agent explores anew until patience ends.
      memory_fraction: the share of a device's memory that a plan may use.
      max_blocks: the forward part is cut into at most this many blocks, of which pipeline stages are made.
      allow_local_batch_stats: micro-batches may take batch statistics of their own (batch norm), which changes results
        and is named in the plan.
    """

    method: str = "dqn"
    budget: str = "2h"
    patience: float = 0.1
    max_evaluations: int | None = None
    sweep_limit: int = 50_000
    seed: int = 0
    memory_fraction: float = 0.9
    max_blocks: int = 32
    allow_local_batch_stats: bool = False
    pin: PinConfig = field(default_factory=PinConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"search.method is one of {', '.join(METHODS)}, got {self.method!r}")
        parse_duration(self.budget, "search.budget")
        if not 0 < self.patience <= 1:
            raise ValueError(f"search.patience is a share of the budget, above 0 and at most 1, got {self.patience}")
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"search.memory_fraction is above 0 and at most 1, got {self.memory_fraction}")
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise ValueError(f"search.max_evaluations is at least 1 or null, got {self.max_evaluations}")
        if self.max_blocks < 1:
            raise ValueError(f"search.max_blocks is at least 1, got {self.max_blocks}")
        if self.sweep_limit < 0:
            raise ValueError(f"search.sweep_limit is at least 0, got {self.sweep_limit}")
