"""Plans of known kinds. They are always in the race, so that a search is never worse than what one would do by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from automap_launch.cluster.cluster import Cluster
from automap_launch.plan.decision import Decision
from automap_launch.plan.sharding import why_invalid
from automap_launch.program.program import Program

BASELINES = ("single", "data_parallel", "zero_data_parallel", "megatron", "pipeline")


def baselines(program: Program, cluster: Cluster) -> dict[str, Decision | None]:
    """The baselines by name; None for one that this program or cluster does not allow.

    `single`: one device, for reference. `data_parallel`: every device has its share of the batch and all of the model.
    `zero_data_parallel`: the same with all state stored sharded. `megatron`: tensor parallelism inside a host, data
    parallelism around it. `pipeline`: a stage a host, with as much work each as can be, data parallelism inside.
    """
    devices = cluster.devices
    known: dict[str, Decision | None] = {
        "single": Decision(1, 1),
        "data_parallel": Decision(devices, 1) if devices > 1 else None,
        "zero_data_parallel": Decision(devices, 1, storage="state") if devices > 1 else None,
        "megatron": _megatron(program, cluster),
        "pipeline": _pipeline(program, cluster),
    }
    return {name: d if d is None or why_invalid(program, d) is None else None for name, d in known.items()}


def _megatron(program: Program, cluster: Cluster) -> Decision | None:
    """Shards inner dims (heads, feed-forward, vocabulary) over a host's devices, or over two where there is one host.

    Each weight is cut along one dim, and two products in a row are cut by columns, then by rows: the stream between
    layers stays whole. Smaller model axes are tried where the dims do not allow the first.
    """
    per_host = cluster.devices_per_host
    widest = per_host if cluster.hosts > 1 else min(2, per_host)
    for model in range(widest, 1, -1):
        if per_host % model == 0:
            decision = Decision(cluster.devices // model, model, inner_groups(program, model))
            if decision.sharded and why_invalid(program, decision) is None:
                return decision
    return None


def _pipeline(program: Program, cluster: Cluster) -> Decision | None:
    """A stage a host (two stages on a single host; fewer where there are not as many blocks), 1F1B, and the most
    micro-batches that the batch allows up to four a stage: more would hide little more of the bubble."""
    hosts = cluster.hosts if cluster.hosts > 1 else 2
    stages = max(n for n in range(1, hosts + 1) if hosts % n == 0 and n <= max(1, len(program.blocks)))
    if stages == 1 or cluster.devices % stages:
        return None
    data = cluster.devices // stages
    work = [block.flops + block.backward_flops for block in program.blocks]
    for micro_batches in range(4 * stages, 0, -1):
        decision = Decision(data, 1, micro_batches=micro_batches, cuts=even_cuts(work, stages), schedule="1f1b")
        if why_invalid(program, decision) is None:
            return decision
    return None


def even_cuts(work: Sequence[int], stages: int) -> tuple[int, ...]:
    """First blocks of all stages but the first, so that the most work of a stage is least. 1 <= stages <= blocks."""
    sums = [0, *accumulate(work)]
    # By end: the least possible most work of the stages so far, and the cuts that give it.
    best: list[tuple[float, tuple[int, ...]]] = [(float(total), ()) for total in sums]
    for stage in range(1, stages):
        longer: list[tuple[float, tuple[int, ...]]] = [(inf, ())] * len(sums)
        for end in range(stage + 1, len(sums)):
            longer[end] = min(
                (max(best[cut][0], float(sums[end] - sums[cut])), (*best[cut][1], cut)) for cut in range(stage, end)
            )
        best = longer
    return best[-1][1]


def inner_groups(program: Program, model: int) -> frozenset[int]:
    """Groups of weights' dims, but for the stream between layers, of which no two meet in one weight."""
    weights = _weights(program)
    stream = stream_group(program)
    chosen: set[int] = set()
    for group in (program.groups[id_] for id_ in sorted(set().union(*weights)) if id_ != stream):
        meets = any(group.id in groups and chosen & set(groups) for groups in weights)
        twice = any(groups.count(group.id) > 1 for groups in weights)
        if group.divisor % model == 0 and not meets and not twice:
            chosen.add(group.id)
    return frozenset(chosen)


def stream_group(program: Program) -> int | None:
    """The group that runs through the layers: a dim of more weights than any other; None where there are no weights."""
    uses = Counter(id_ for groups in _weights(program) for id_ in set(groups))
    return max(uses, key=lambda id_: (uses[id_], program.groups[id_].bytes)) if uses else None


def _weights(program: Program) -> list[list[int]]:
    """Groups of each operand without a batch dim of a product with one: the weights, as the products see them."""
    found = []
    for op in program.ops:
        if op.name in ("dot_general", "convolution"):
            sides = [[g for g in program.dim_groups[value] if g is not None] for value in op.operands]
            weights = [side for side in sides if program.batch not in side]
            found += [side for side in weights if len(side) > 1 and len(weights) < len(sides)]
    return found
