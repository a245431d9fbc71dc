"""Where a step's time goes: compute by part of the step, and collectives by kind and axis."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import Kind, alpha_beta
from automap_launch.plan.block_costs import MICRO_PHASES, PHASES, BlockCosts
from automap_launch.plan.block_table import BlockTable, is_joined
from automap_launch.plan.decision import Decision
from automap_launch.plan.sharding import mesh_of
from automap_launch.program.program import Part

_PART: dict[str, Part] = {
    "before": "forward", "forward": "forward", "backward": "backward", "weight": "backward", "after": "update"
}  # fmt: skip


@dataclass(frozen=True)
class CollectiveUse:
    """All collectives of one kind over one axis in a step.

    `count`: gradients before the compiler joins them, others that can run as one as one. `bytes`: as
    `cluster/collectives.py` defines the size of each kind.
    """

    kind: Kind
    axis: str
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Breakdown:
    """Where a step's time goes: compute seconds by part of the step, and its collectives, costliest first.

    Of a pipeline, those of the stage that is busy longest. What needs no batch counts as forward.

    `flops`: floating-point operations of one device.
    """

    compute: dict[Part, float]
    flops: float
    collectives: tuple[CollectiveUse, ...]


def of_stage(
    table: BlockTable, costs: BlockCosts, cluster: Cluster, decision: Decision, span: tuple[int, int]
) -> Breakdown:
    """Of one stage of a pipeline: of the blocks from `span[0]` up to `span[1]`."""
    first, end = span
    times = table.times[first:end].sum(axis=0)
    counts: dict[tuple[Kind, str], float] = defaultdict(float)
    sizes: dict[tuple[Kind, str], float] = defaultdict(float)
    seconds: dict[tuple[Kind, str], float] = defaultdict(float)
    joined: dict[tuple[Kind, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    flops = 0.0
    mesh = mesh_of(decision)
    for often, member in zip(times, table.members(decision), strict=True):
        flops += often * member.flops * _rounds(member.phase, costs)
        for phase, collective in member.collectives:
            key = (collective.kind, collective.axis)
            runs = often * _rounds(phase, costs)
            counts[key] += runs * (1.0 if is_joined(collective) else collective.wait)
            sizes[key] += runs * collective.size
            if is_joined(collective):
                joined[key][0] += runs
                joined[key][1] += runs * collective.size
            else:
                alpha, beta = alpha_beta(cluster, mesh, collective.axis, collective.kind)
                seconds[key] += runs * (alpha * collective.wait + beta * collective.size)
    for key, (count, size) in joined.items():
        alpha, beta = alpha_beta(cluster, mesh, key[1], key[0])
        buckets = min(round(count), max(1, np.ceil(size / costs.joined.bucket)))
        seconds[key] += buckets * alpha + size * beta
    compute: dict[Part, float] = dict.fromkeys(_PART.values(), 0.0)
    for column, phase in enumerate(PHASES):
        compute[_PART[phase]] += float(costs.compute[first:end, column].sum()) * _rounds(phase, costs)
    uses = [
        CollectiveUse(*key, round(counts[key]), round(sizes[key]), seconds[key]) for key in counts if counts[key] > 0
    ]
    return Breakdown(compute, float(flops), tuple(sorted(uses, key=lambda use: -use.seconds)))


def _rounds(phase: str, costs: BlockCosts) -> int:
    return costs.micro_batches if PHASES.index(phase) < MICRO_PHASES else 1
