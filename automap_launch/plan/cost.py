"""`CostModel`: predicted step time and memory of plans of one program on one cluster.

A step is a table of rows (`rows.py`). What a row costs depends on the mesh and on which of *its* groups are sharded
(`cases.py`, `patterns.py`); those few cases are priced when first needed (`pricing.py`, `table.py`). An estimate is
then one lookup for every set of rows that touch the same groups, and a sum: thousands of plans a second, however long
the program.

Time of a row: max(flops / peak, bytes / bandwidth), the roofline. A step's compute is the sum over its rows, its
communication the sum of its collectives by the alpha-beta model. Compute and communication are not assumed to overlap.

A plan with several stages or micro-batches is put together from the costs of its blocks (`block_table.py`,
`block_costs.py`) by the timeline of its schedule (`timeline.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import Kind
from automap_launch.plan.block_bounds import BlockBounds
from automap_launch.plan.block_costs import BlockCosts, RunCosts, join
from automap_launch.plan.block_memory import BlockMemory, block_memory
from automap_launch.plan.block_table import BlockTable
from automap_launch.plan.breakdown import Breakdown, CollectiveUse, of_stage
from automap_launch.plan.decision import Decision, Schedule, Storage
from automap_launch.plan.group_bounds import GroupBounds
from automap_launch.plan.liveness import liveness_of
from automap_launch.plan.patterns import PatternBook
from automap_launch.plan.plan import Memory
from automap_launch.plan.pricing import (
    COUNTS,
    FLOPS,
    LANES,
    OPTIMIZER,
    OTHER,
    PARAMETERS,
    SECONDS,
    SIZES,
)
from automap_launch.plan.row_sets import RowSets
from automap_launch.plan.rows import PARTS
from automap_launch.plan.sharding import mesh_of, shardable_groups, why_invalid
from automap_launch.plan.table import MeshTable
from automap_launch.plan.traffic import memory_traffic
from automap_launch.program.program import Program
from automap_launch.program.stacks import Stack, stacks_of


@dataclass(frozen=True)
class Estimate:
    """Predicted cost of one step. Seconds, and bytes that a device holds at the peak.

    `step_seconds` = `compute` + `communication` + `bubble`. Of a pipeline, compute and communication are those of the
    stage that is busy longest, `bubble` is the time in which it waits for others, and memory is the fullest stage's.
    """

    step_seconds: float
    compute: float
    communication: float
    memory: Memory
    fits: bool
    bubble: float = 0.0


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
        self._patterns = PatternBook(program, self._rows)
        self._live = liveness_of(program, traffic, self._rows.rules)
        self._tables: dict[tuple[int, int], MeshTable] = {}
        self._block_tables: dict[tuple[int, int, int, int], BlockTable] = {}

    def estimate(self, decision: Decision) -> Estimate:
        """The estimate of one plan. Raises ValueError as `estimate_many`."""
        return self.estimate_many([decision])[0]

    def estimate_many(self, decisions: Sequence[Decision]) -> list[Estimate]:
        """Estimates, in the order of `decisions`.

        Raises:
          ValueError: a decision cannot be carried out: its stages have more devices than the cluster, an axis does
            not divide what it shards, or the step cannot be cut into micro-batches.
        """
        alike: dict[tuple[int, int, int, int, Schedule], list[int]] = {}
        for i, d in enumerate(decisions):
            alike.setdefault((d.data, d.model, d.stages, d.micro_batches, d.schedule), []).append(i)
        estimates: dict[int, Estimate] = {}
        for (_, _, stages, micro_batches, _), places in alike.items():
            whole = stages == micro_batches == 1
            estimate = self._estimate_on_one_mesh if whole else self._estimate_pipelines
            estimates.update(zip(places, estimate([decisions[i] for i in places]), strict=True))
        return [estimates[i] for i in range(len(decisions))]

    def block_costs(self, decision: Decision) -> BlockCosts:
        """What each block costs under a decision's mesh, groups, storage and micro-batches.

        Only the number of the decision's cuts matters, and its schedule does not: pipelines of all cuts and schedules
        follow from it as `BlockCosts` says, with the very numbers of `estimate_many`.

        Raises:
          ValueError: as `estimate_many`.
        """
        self._check(decision)
        return self._block_table(decision).costs(decision)

    def group_bounds(self, decision: Decision) -> GroupBounds:
        """Lower bounds of all plans with a decision's mesh, storage, micro-batches and number of stages.

        Raises:
          ValueError: as `estimate_many`.
        """
        self._check(decision)
        if decision.stages == decision.micro_batches == 1:
            return self._table(decision).bounds(decision.storage)
        return self._block_table(decision).bounds(decision.storage)

    def block_bounds(self, decision: Decision) -> BlockBounds:
        """Lower bounds of each block, of all plans with a decision's mesh, storage and micro-batches.

        Raises:
          ValueError: as `estimate_many`.
        """
        self._check(decision)
        return self._block_table(decision).block_bounds(decision.storage)

    def breakdown(self, decision: Decision) -> Breakdown:
        """Where the time of one plan goes. Raises ValueError as `estimate_many`."""
        if decision.stages > 1 or decision.micro_batches > 1:
            return self._breakdown_of_pipeline(decision)
        table = self._table(decision)
        totals = table.totals([decision])
        seconds = table.lane_seconds(totals)[0]
        sizes, counts = totals[0, SIZES], totals[0, COUNTS]
        lanes: dict[tuple[Kind, str], list[int]] = {}
        for lane, (kind, axis, _) in enumerate(LANES):
            if counts[lane]:
                lanes.setdefault((kind, axis), []).append(lane)
        uses = [
            CollectiveUse(kind, axis, round(counts[own].sum()), int(sizes[own].sum()), float(seconds[own].sum()))
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
            bucket = self._rows.rules.combine_bytes
            scattered = np.array([d.storage != "none" for d in decisions])
            together = np.where(scattered, table.reduced_together(shares), bucket)
            sums = np.minimum(gradients, together[:, None])
            if self._rows.rules.reduce_scatter:
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

    def _estimate_pipelines(self, decisions: Sequence[Decision]) -> list[Estimate]:
        """Of decisions that are alike but for cuts, groups and storage."""
        for decision in decisions:
            self._check(decision)
        table = self._block_table(decisions[0])
        alike: dict[tuple[frozenset[int], Storage], list[int]] = {}
        for i, decision in enumerate(decisions):
            alike.setdefault((decision.sharded, decision.storage), []).append(i)
        cases = []
        for places in alike.values():
            cuts = np.array([decisions[i].cuts for i in places], dtype=np.int64).reshape(len(places), -1)
            cases.append((table.costs(decisions[places[0]]), cuts))
        costs = join(decisions[0].schedule, cases)
        order = [i for places in alike.values() for i in places]
        found: dict[int, Estimate] = {}
        for i, total, compute, wait, bubble, held in zip(
            order,
            costs.step_seconds.tolist(),
            costs.compute.tolist(),
            costs.communication.tolist(),
            costs.bubble.tolist(),
            costs.memory.astype(np.int64).tolist(),
            strict=True,
        ):
            memory = Memory(*held)
            found[i] = Estimate(total, compute, wait, memory, memory.total <= self.memory_limit, bubble)
        return [found[i] for i in range(len(decisions))]

    def stages(self, decision: Decision) -> RunCosts:
        """Costs of each stage of one plan, in order. Raises ValueError as `estimate_many`."""
        costs = self.block_costs(decision).stages(np.array([decision.cuts], dtype=np.int64))
        return RunCosts(**{field.name: getattr(costs, field.name)[0] for field in fields(RunCosts)})

    def _breakdown_of_pipeline(self, decision: Decision) -> Breakdown:
        runs = self.stages(decision)
        busiest = int((runs.compute + runs.communication).argmax())
        costs = self.block_costs(decision)
        bounds = [0, *decision.cuts, costs.blocks]
        span = (bounds[busiest], bounds[busiest + 1])
        return of_stage(self._block_table(decision), costs, self.cluster, decision, span)

    def _block_table(self, decision: Decision) -> BlockTable:
        key = (decision.data, decision.model, decision.micro_batches, decision.stages)
        if key not in self._block_tables:
            self._block_tables[key] = BlockTable(
                self.program,
                self.cluster,
                self._patterns,
                self._block_memory,
                self._table(decision),
                micro_batches=decision.micro_batches,
                stages=decision.stages,
                stacks=self._stacks,
            )
        return self._block_tables[key]

    @cached_property
    def _stacks(self) -> tuple[Stack, ...]:
        return stacks_of(self.program)

    @cached_property
    def _block_memory(self) -> BlockMemory:
        return block_memory(self.program, self._live)

    def _check(self, decision: Decision) -> None:
        if decision.devices > self.cluster.devices:
            raise ValueError(
                f"stages={decision.stages} data={decision.data} model={decision.model} needs {decision.devices} "
                f"devices, the cluster has {self.cluster.devices}"
            )
        why = why_invalid(self.program, decision, self._shardable)
        if why is not None:
            raise ValueError(why)

    def _table(self, decision: Decision) -> MeshTable:
        key = (decision.data, decision.model)
        if key not in self._tables:
            self._check(decision)
            mesh = mesh_of(decision)
            self._tables[key] = MeshTable(self.program, self.cluster, self._patterns, self._live, mesh)
        return self._tables[key]
