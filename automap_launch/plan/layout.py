"""`Layout`: a plan's shardings for the flat arguments and results of one step. All that a worker needs of a plan."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

Spec = tuple[str | None, ...]  # for each dim of a tensor, the mesh axis that shards it


@dataclass(frozen=True)
class Layout:
    """Shardings over one mesh.

    Attributes:
      mesh: size by axis, major axis first.
      compute: for each argument, its sharding where the forward and backward parts use it.
      storage: for each argument, its sharding on the way in and, for what replaces it, on the way out. It differs
        from `compute` for state that is stored sharded over the data axis (ZeRO).
      results: for each result, its sharding on the way out. Small results are replicated.
    """

    mesh: dict[str, int]
    compute: tuple[Spec, ...]
    storage: tuple[Spec, ...]
    results: tuple[Spec, ...]

    def __post_init__(self) -> None:
        if len(self.compute) != len(self.storage):
            raise ValueError(f"{len(self.compute)} compute shardings but {len(self.storage)} storage shardings")
        for spec in (*self.compute, *self.storage, *self.results):
            axes = [axis for axis in spec if axis is not None]
            unknown = set(axes) - set(self.mesh)
            if unknown or len(axes) != len(set(axes)):
                raise ValueError(f"sharding {spec} must use each axis of {self.mesh} at most once")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Layout:
        record = json.loads(path.read_text())
        specs = {k: tuple(tuple(s) for s in record[k]) for k in ("compute", "storage", "results")}
        return cls(mesh=record["mesh"], **specs)
