"""The config group `search`."""

from __future__ import annotations

from dataclasses import dataclass, field

from automap_launch.units import parse_duration

FINETUNE = ("auto", "off")
TRIALS = ("auto", "off")
CACHES = ("read", "refresh", "off")
METHODS = ("portfolio", "dqn", "exact", "anneal", "random", "heuristic")


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
      exploration: bonus of the upper confidence bounds over (stages, micro-batches), in log seconds.
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
    updates_per_decision: int = 1
    target_interval: int = 100
    epsilon_start: float = 0.2
    epsilon_end: float = 0.05
    epsilon_episodes: int = 5
    exploration: float = 0.12
    round_episodes: int = 10

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
class PruningConfig:
    """What keeps the space small (Auto-MAP's task-specific pruning) and can be switched off, to show what it brings.

    Attributes:
      linkage_groups: dims that propagation ties are decided together; off: the agent decides a group's parameters dim
        by dim, and what contradicts the first of them is a dead end.
      tied_layers: isomorphic groups of repeated layers are decided together; off: each by itself.
      forward_only_cuts: a cut of the forward part is one of the whole step; off: the agent cuts the backward part and
        the update by themselves, and elsewhere than the forward part is a dead end.
      balance_window: the agent's cuts lie so many blocks around balanced positions; null: anywhere.
      divisibility: the agent is not offered what does not divide, or a pin rules out; off: it is, as a dead end.
      memory_bound: the agent is not offered a way on which not even the plan of least memory fits, where there are
        others; off: it is.
    """

    linkage_groups: bool = True
    tied_layers: bool = True
    forward_only_cuts: bool = True
    balance_window: int | None = 2
    divisibility: bool = True
    memory_bound: bool = True

    def __post_init__(self) -> None:
        if self.balance_window is not None and self.balance_window < 0:
            raise ValueError(f"search.prune.balance_window is at least 0 or null, got {self.balance_window}")


@dataclass
class SearchConfig:
    """How a plan is looked for.

    Attributes:
      method: `portfolio` (the agent, then the oracle for the rest of the box), `dqn` (the agent with upper confidence
        bounds and hill-climbing), `exact` (the oracle), `anneal`, `random`, or `heuristic` (the baselines alone).
      budget: the search ends after this time at the latest.
      patience: the agent, and then the oracle, ends early when it has got no further for this long, or for as long as
        it has needed for what it has found, whichever is more; null: never.
      max_evaluations: it ends after this many evaluated plans; with it the result depends on `seed` alone.
      pretrained: the agent begins with the weights that come with the package; off: as the look-ahead alone acts.
      finetune: episodes on distributions around the model at hand, before the agent's own on it: so many, `off`, or
        `auto`: some where the best plan that the agent comes to by itself is behind others that are known.
      memory_fraction: the share of a device's memory that a plan may use.
      max_blocks: the forward part is cut into at most this many blocks, of which pipeline stages are made.
      trial: `auto`: before training, the best plans and pure data parallelism run a few steps on the devices, and the
        fastest trains; `off`: the predictions decide.
      verify_top_k: so many of the plans that go to the devices are compiled by XLA first, for as many virtual CPU
        devices, and those that need more memory than a device has are replaced or left out; 0: none; null: 1, and on
        CPU clusters 0, where the launch compiles the same module anyway.
      verify_timeout: plans that are not compiled by then are taken as predicted.
      cache: `read`: the plan of an earlier launch with the same step, cluster, settings and versions is taken, if there
        is one; `refresh`: it is searched for anew and kept; `off`: nothing is read or kept.
      model_error: share by which predictions may be wrong: without a trial, a plan that is not predicted to gain more
        than this over pure data parallelism is not taken.
      allow_local_batch_stats: micro-batches may take batch statistics of their own (batch norm), which changes results
        and is named in the plan.
    """

    method: str = "portfolio"
    budget: str = "2h"
    patience: str | None = "20s"
    max_evaluations: int | None = None
    pretrained: bool = True
    finetune: str = "auto"
    seed: int = 0
    memory_fraction: float = 0.9
    max_blocks: int = 32
    trial: str = "auto"
    verify_top_k: int | None = None
    verify_timeout: str = "2m"
    cache: str = "read"
    model_error: float = 0.1
    allow_local_batch_stats: bool = False
    pin: PinConfig = field(default_factory=PinConfig)
    prune: PruningConfig = field(default_factory=PruningConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"search.method is one of {', '.join(METHODS)}, got {self.method!r}")
        parse_duration(self.budget, "search.budget")
        if self.patience is not None:
            parse_duration(self.patience, "search.patience")
        if self.finetune not in FINETUNE and not self.finetune.isdigit():
            raise ValueError(f"search.finetune is auto, off or a number of episodes, got {self.finetune!r}")
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"search.memory_fraction is above 0 and at most 1, got {self.memory_fraction}")
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise ValueError(f"search.max_evaluations is at least 1 or null, got {self.max_evaluations}")
        if self.trial not in TRIALS:
            raise ValueError(f"search.trial is one of {', '.join(TRIALS)}, got {self.trial!r}")
        if self.verify_top_k is not None and self.verify_top_k < 0:
            raise ValueError(f"search.verify_top_k is at least 0 or null, got {self.verify_top_k}")
        parse_duration(self.verify_timeout, "search.verify_timeout")
        if self.cache not in CACHES:
            raise ValueError(f"search.cache is one of {', '.join(CACHES)}, got {self.cache!r}")
        if self.model_error < 0:
            raise ValueError(f"search.model_error is a share of at least 0, got {self.model_error}")
        if self.max_blocks < 1:
            raise ValueError(f"search.max_blocks is at least 1, got {self.max_blocks}")

    @property
    def fine_tuning(self) -> int | None:
        """Episodes on copies of the model; None: the searcher decides."""
        return None if self.finetune == "auto" else 0 if self.finetune == "off" else int(self.finetune)
