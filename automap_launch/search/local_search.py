"""Hill-climbing on plans: of all plans one or two small changes away the best, until none is better."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from automap_launch.plan.decision import SCHEDULES, Decision
from automap_launch.search.evaluator import Evaluator, log_cost
from automap_launch.search.space import Mesh, PlanSpace

LABEL = "hill_climbing"
# Two groups are changed at once where there are at most so many that can be.
_PAIRED_GROUPS = 16


def climb(evaluator: Evaluator, decision: Decision, *, far: bool = False) -> Decision:
    """The best plan that better neighbours lead to. Improvements are labelled as its own.

    Args:
      far: where no neighbour is better, `farther` plans are looked at as well.

    Raises:
      SearchEnd: a limit was reached.
    """
    label, evaluator.found_by = evaluator.found_by, LABEL
    try:
        limit = evaluator.model.memory_limit
        cost = log_cost(evaluator.estimate(decision), limit)
        while True:
            near = neighbours(evaluator.space, decision)
            costs = [log_cost(e, limit) for e in evaluator.estimate_many(near)]
            best = min(range(len(near)), key=costs.__getitem__, default=None)
            if far and (best is None or costs[best] >= cost):
                near = farther(evaluator.space, decision)
                costs = [log_cost(e, limit) for e in evaluator.estimate_many(near)]
                best = min(range(len(near)), key=costs.__getitem__, default=None)
            if best is None or costs[best] >= cost:
                return decision
            decision, cost = near[best], costs[best]
    finally:
        evaluator.found_by = label


def neighbours(space: PlanSpace, decision: Decision) -> list[Decision]:
    """The plans of the space that differ by one step of one kind: groups (one or two), storage, schedule,
    micro-batches, mesh, a cut, or twice or half as many stages."""
    changed = itertools.chain(
        _groups(space, decision),
        (replace(decision, storage=storage) for storage in space.storages_of((decision.data, decision.model))),
        (replace(decision, schedule=s) for s in SCHEDULES if (s == "none") == (not decision.cuts)),
        _micro_batches(space, decision),
        _meshes(space, decision),
        _cuts(decision, space.partition.blocks),
        _stages(space, decision),
    )
    return [d for d in dict.fromkeys(changed) if d != decision and d in space]


def farther(space: PlanSpace, decision: Decision) -> list[Decision]:
    """The plans of the space that differ by two small steps, or have one cut anywhere else."""
    two = (second for first in _small(space, decision) for second in _small(space, first))
    return [d for d in dict.fromkeys(itertools.chain(two, _jumps(decision, space.partition.blocks))) if d in space]


def _small(space: PlanSpace, decision: Decision) -> Iterator[Decision]:
    """Plans with another group, storage, schedule or number of micro-batches, or a cut one block away."""
    yield from _flipped(space, decision, [{group} for group in space.free_groups(decision.model)])
    yield from (replace(decision, storage=s) for s in space.storages_of((decision.data, decision.model)))
    yield from (replace(decision, schedule=s) for s in SCHEDULES if (s == "none") == (not decision.cuts))
    yield from _micro_batches(space, decision)
    yield from _cuts(decision, space.partition.blocks)


def _jumps(decision: Decision, blocks: int) -> Iterator[Decision]:
    for place in range(len(decision.cuts)):
        rest = (*decision.cuts[:place], *decision.cuts[place + 1 :])
        yield from (replace(decision, cuts=tuple(sorted({*rest, cut}))) for cut in range(1, blocks) if cut not in rest)


def _groups(space: PlanSpace, decision: Decision) -> Iterator[Decision]:
    free = space.free_groups(decision.model)
    flips = [{group} for group in free]
    if len(free) <= _PAIRED_GROUPS:
        flips += [set(pair) for pair in itertools.combinations(free, 2)]
    yield from _flipped(space, decision, flips)


def _flipped(space: PlanSpace, decision: Decision, flips: Iterable[set[int]]) -> Iterator[Decision]:
    for flip in flips:
        sharded = space.canonical((decision.data, decision.model), decision.sharded ^ flip)
        if sharded is not None:
            yield replace(decision, sharded=sharded)


def _micro_batches(space: PlanSpace, decision: Decision) -> Iterator[Decision]:
    counts = sorted({h.micro_batches for h in space.heads if h.stages == decision.stages})
    fewer = [count for count in counts if count < decision.micro_batches][-1:]
    more = [count for count in counts if count > decision.micro_batches][:1]
    for count, schedule in itertools.product((*fewer, *more), SCHEDULES):
        # From one micro-batch, which has one order, to several and back the schedule changes as well.
        if (schedule == "none") == (not decision.cuts):
            yield replace(decision, micro_batches=count, schedule=schedule)


def _meshes(space: PlanSpace, decision: Decision) -> Iterator[Decision]:
    for mesh in dict.fromkeys(h.mesh for h in space.heads if h.stages == decision.stages):
        yield from _on_mesh(space, decision, mesh)


def _stages(space: PlanSpace, decision: Decision) -> Iterator[Decision]:
    counts = sorted({h.stages for h in space.heads})
    fewer = [count for count in counts if count < decision.stages][-1:]
    more = [count for count in counts if count > decision.stages][:1]
    for stages in (*fewer, *more):
        cuts = space.partition.balanced((), stages)
        schedules = SCHEDULES[:1] if stages == 1 else SCHEDULES[1:]
        micro_batches = {decision.micro_batches, 2 * decision.micro_batches, 4 * decision.micro_batches}
        for mesh in dict.fromkeys(h.mesh for h in space.heads if h.stages == stages):
            for schedule, count in itertools.product(schedules, micro_batches):
                shape = replace(decision, cuts=cuts, schedule=schedule, micro_batches=count)
                yield from _on_mesh(space, shape, mesh)


def _on_mesh(space: PlanSpace, decision: Decision, mesh: Mesh) -> Iterator[Decision]:
    """The plan on another mesh: with its groups where they shard something, and with those of a plan made by hand."""
    storages = space.storages_of(mesh)
    storage = decision.storage if decision.storage in storages else storages[0]
    for groups in (decision.sharded, space.inner_groups(mesh[1])):
        sharded = space.canonical(mesh, groups)
        if sharded is not None:
            yield replace(decision, data=mesh[0], model=mesh[1], sharded=sharded, storage=storage)


def _cuts(decision: Decision, blocks: int) -> Iterator[Decision]:
    bounds = (0, *decision.cuts, blocks)
    for place, cut in enumerate(decision.cuts):
        for moved in (cut - 1, cut + 1):
            if bounds[place] < moved < bounds[place + 2]:
                cuts = (*decision.cuts[:place], moved, *decision.cuts[place + 1 :])
                yield replace(decision, cuts=cuts)
