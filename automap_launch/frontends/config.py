"""The config group `frontend`."""

from __future__ import annotations

from dataclasses import dataclass

from automap_launch.units import parse_bytes, parse_duration

KINDS = ("auto", "jax", "tensorflow")
WORLDS = ("single", "real")


@dataclass
class FrontendConfig:
    """How the train step is found, and what the script sees of the cluster.

    Attributes:
      kind: what the step is written in; `auto`: whatever the script trains with.
      step: name of the step's function (`train_step`, `Trainer.step`); null: found by itself.
      world: `single`: the script sees one device, as it was written for. `real`: it sees all.
      materialize_limit: arrays above this size stay abstract while capturing, and are created in place when running.
      capture_timeout: the step must be found within this time.
    """

    kind: str = "auto"
    step: str | None = None
    world: str = "single"
    materialize_limit: str = "16MiB"
    capture_timeout: str = "10m"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"frontend.kind is one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.world not in WORLDS:
            raise ValueError(f"frontend.world is one of {', '.join(WORLDS)}, got {self.world!r}")
        parse_bytes(self.materialize_limit, "frontend.materialize_limit")
        parse_duration(self.capture_timeout, "frontend.capture_timeout")
