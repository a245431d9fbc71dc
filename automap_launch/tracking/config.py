"""The config group `tracking`."""

from __future__ import annotations

from dataclasses import dataclass, field

BACKENDS = ("wandb", "none")
MODES = ("auto", "online", "offline", "disabled")


@dataclass
class TrackingConfig:
    """Where measurements go besides `metrics.jsonl`, which is always written.

    Attributes:
      backend: `wandb`, or `none` (wandb is then never imported).
      mode: of W&B; `auto`: online when an API key is set, else offline.
      project, entity, name, tags: of the W&B run; null: W&B's own choice.
      console_interval: seconds between two lines of progress on the terminal.
    """

    backend: str = "wandb"
    mode: str = "auto"
    project: str = "automap-launch"
    entity: str | None = None
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    console_interval: float = 5.0

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"tracking.backend is one of {', '.join(BACKENDS)}, got {self.backend!r}")
        if self.mode not in MODES:
            raise ValueError(f"tracking.mode is one of {', '.join(MODES)}, got {self.mode!r}")
