"""`CostModel`: predicted step time and memory of plans of one program on one cluster.

A step is a table of rows (`rows.py`). What a row costs depends on the mesh and on which of *its* groups are sharded
(`cases.py`); those few cases are priced when first needed (`pricing.py`, `table.py`). An estimate is then one lookup
for every set of rows that touch the same groups, and a sum: thousands of plans a second, however long the program.

Time of a row: max(flops / peak, bytes / bandwidth), the roofline. A step's compute is the sum over its rows, its
communication the sum of its collectives by the alpha-beta model. Compute and communication are not assumed to overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import Kind
from automap_launch.plan.decision import Decision
from automap_launch.plan.liveness import liveness_of
from automap_launch.plan.plan import Memory
from automap_launch.plan.pricing import (
    COUNTS,
    FLOPS,
    LANES,
    OPTIMIZER,
    OTHER,
    PARAMETERS,
    PARTS,
    SECONDS,
    SIZES,
    RowSets,
)
from automap_launch.plan.sharding import mesh_of, shardable_groups, why_invalid
from automap_launch.plan.table import MeshTable
from automap_launch.plan.traffic import memory_traffic
from automap_launch.program.program import Part, Program


@dataclass(frozen=True)
class CollectiveUse:
    """All collectives of one kind over one axis in a step.

    `count`: before the compiler joins any. `bytes`: as `cluster/collectives.py` defines the size of each kind.
    """

    kind: Kind
    axis: str
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """Predicted cost of one step. Seconds, and bytes that a device holds at the peak."""

    step_seconds: float
    compute: float
    communication: float
    memory: Memory
    fits: bool


@dataclass(frozen=True)
class Breakdown:
    """Where a step's time goes: compute seconds by part of the step, and its collectives, costliest first.

    `flops`: floating-point operations of one device.
    """

    compute: dict[Part, float]
    flops: float
    collectives: tuple[CollectiveUse, ...]


class CostModel:
    """Estimates plans of `program` on `cluster`.

    Args:
      memory_fraction: the share of a device's memory that a plan may use.
    """

    def __init__(self, program: Program, cluster: Cluster, memory_fraction: float = 0.9) -> None:
        self.program = program
        self.cluster = cluster
        self.memory_limit = cluster.device.memory_bytes * memory_fraction
        self._shardable = shardable_groups(program)
        traffic = memory_traffic(program)
        self._rows = RowSets(program, traffic, cluster)
        self._live = liveness_of(program, traffic, self._rows.rules)
        self._tables: dict[tuple[int, int], MeshTable] = {}

    def estimate(self, decision: Decision) -> Estimate:
        """The estimate of one plan. Raises ValueError as `estimate_many`."""
        return self.estimate_many([decision])[0]

    def estimate_many(self, decisions: Sequence[Decision]) -> list[Estimate]:
        """Estimates, in the order of `decisions`.

        Raises:
          ValueError: a decision cannot be carried out: its mesh has more devices than the cluster, or an axis does
            not divide what it shards.
        """
        by_mesh: dict[tuple[int, int], list[int]] = {}
        for i, decision in enumerate(decisions):
            by_mesh.setdefault((decision.data, decision.model), []).append(i)
        estimates: dict[int, Estimate] = {}
        for places in by_mesh.values():
            found = self._estimate_on_one_mesh([decisions[i] for i in places])
            estimates.update(zip(places, found, strict=True))
        return [estimates[i] for i in range(len(decisions))]

    def breakdown(self, decision: Decision) -> Breakdown:
        """Where the time of one plan goes. Raises ValueError as `estimate_many`."""
        table = self._table(decision)
        totals = table.totals([decision])
        seconds = table.lane_seconds(totals)[0]
        sizes, counts = totals[0, SIZES], totals[0, COUNTS]
        lanes: dict[tuple[Kind, str], list[int]] = {}
        for lane, (kind, axis, _) in enumerate(LANES):
            if counts[lane]:
                lanes.setdefault((kind, axis), []).append(lane)
        uses = [
            CollectiveUse(kind, axis, int(counts[own].sum()), int(sizes[own].sum()), float(seconds[own].sum()))
            for (kind, axis), own in lanes.items()
        ]
        compute = dict(zip(PARTS, totals[0, SECONDS].tolist(), strict=True))
        return Breakdown(compute, float(totals[0, FLOPS]), tuple(sorted(uses, key=lambda use: -use.seconds)))

    def _estimate_on_one_mesh(self, decisions: Sequence[Decision]) -> list[Estimate]:
        table = self._table(decisions[0])
        for decision in decisions:
            self._check(decision)
        totals = table.totals(decisions)
        compute = totals[:, SECONDS].sum(axis=1)
        communication = table.lane_seconds(totals).sum(axis=1)
        shares = table.shares(decisions)
        activations = shares @ self._live.activations.T
        gradients = shares @ self._live.gradients.T
        if decisions[0].data > 1:
            # Gradients that are reduced in one go are there twice: as the sums of this device and as those of all.
            sums = np.minimum(gradients, self._rows.rules.combine_bytes)
            if self._rows.rules.reduce_scatter:
                scattered = np.array([d.storage != "none" for d in decisions])
                sums[scattered] /= decisions[0].data
            gradients += sums
        peak = np.argmax(activations + gradients, axis=1)
        rows = np.arange(len(decisions))
        held = np.stack(
            [
                totals[:, PARAMETERS],
                totals[:, OPTIMIZER],
                gradients[rows, peak],
                activations[rows, peak] + totals[:, OTHER],
            ],
            axis=1,
        ).astype(np.int64)
        estimates = []
        for seconds, wait, held_bytes in zip(compute.tolist(), communication.tolist(), held.tolist(), strict=True):
            memory = Memory(*held_bytes)
            estimates.append(Estimate(seconds + wait, seconds, wait, memory, memory.total <= self.memory_limit))
        return estimates

    def _check(self, decision: Decision) -> None:
        why = why_invalid(self.program, decision, self._shardable)
        if why is not None:
            raise ValueError(why)

    def _table(self, decision: Decision) -> MeshTable:
        key = (decision.data, decision.model)
        if key not in self._tables:
            self._check(decision)
            mesh = mesh_of(decision)
            self._tables[key] = MeshTable(self.program, self.cluster, self._rows, self._live, mesh)
        return self._tables[key]
