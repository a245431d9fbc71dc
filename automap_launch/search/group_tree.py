"""The plans of a case as a tree: each level decides whether one more linkage group is sharded.

A *case* is a mesh, a number of micro-batches, a storage and a number of stages. What its blocks cost at least, however
the undecided groups are taken, is known at every node (`plan/block_bounds.py`); at a leaf it is what they cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_bounds import BlockBounds
from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.decision import Decision, Schedule, Storage
from automap_launch.plan.group_bounds import HELD_BYTES, MICRO, WHOLE, GroupBounds
from automap_launch.search.space import BoundedCostModel, Mesh, PlanSpace

_CASES = 16  # of which the blocks' bounds are kept


@dataclass(frozen=True)
class Case:
    """Plans that share all but groups, schedule and cuts."""

    mesh: Mesh
    micro_batches: int
    storage: Storage
    stages: int
    schedules: tuple[Schedule, ...]

    def decision(self, sharded: frozenset[int] = frozenset()) -> Decision:
        """A decision of the case; its cuts stand for others."""
        cuts = tuple(range(1, self.stages))
        return Decision(*self.mesh, sharded, self.storage, self.micro_batches, cuts, self.schedules[0])


def cases_of(space: PlanSpace) -> list[Case]:
    """All cases of the space."""
    schedules: dict[tuple[Mesh, int, int], list[Schedule]] = {}
    for head in space.heads:
        schedules.setdefault((head.mesh, head.micro_batches, head.stages), []).append(head.schedule)
    return [
        Case(mesh, micro_batches, storage, stages, tuple(found))
        for (mesh, micro_batches, stages), found in schedules.items()
        for storage in space.storages_of(mesh)
    ]


@dataclass(frozen=True)
class Branch:
    """Plans of a case of which the first `place` groups of the space are decided; `mask`: those that are sharded."""

    case: Case
    place: int = 0
    mask: int = 0


class GroupTree:
    """The trees of all cases of a space."""

    def __init__(self, model: BoundedCostModel, space: PlanSpace) -> None:
        self._model = model
        self._space = space
        self._ids = [g.id for g in space.groups]
        self._bounds = lru_cache(maxsize=_CASES)(self._block_bounds)

    def is_leaf(self, branch: Branch) -> bool:
        """Whether all groups are decided."""
        return branch.place == len(self._ids)

    def children(self, branch: Branch) -> list[Branch]:
        """The ways to decide the next group that may be sharded or not; those before it go the one way they can."""
        model = branch.case.mesh[1]
        masks, place = np.array([branch.mask], np.int64), branch.place
        while place < len(self._ids) and len(masks) == 1:
            masks = self._space.extended(masks, place, model)
            place += 1
        if place == len(self._ids) and model > 1:
            masks = masks[masks > 0]
        return [Branch(branch.case, place, mask) for mask in masks.tolist()]

    def costs(self, branch: Branch) -> BlockCosts:
        """Of blocks: none is above that of any plan of the branch."""
        if self.is_leaf(branch):
            return self._model.block_costs(self.decision(branch))
        decided = self._space.carried(np.array([branch.mask], np.int64), branch.place)
        undecided = frozenset(self._ids[branch.place :])
        return self._bounds(branch.case).least(groups_of(self._ids, int(decided[0])), undecided)

    def decision(self, branch: Branch) -> Decision:
        """Of a leaf; its cuts and schedule stand for others, but for cuts that are pinned."""
        decision = branch.case.decision(groups_of(self._ids, branch.mask))
        pinned = self._space.pins.cuts
        return decision if pinned is None else replace(decision, cuts=pinned)

    def _block_bounds(self, case: Case) -> BlockBounds:
        return self._model.block_bounds(case.decision())


def least_seconds(case: Case, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """float64[sets]: no plan of the case takes less, whatever its cuts. Args: rows: of `GroupBounds`.

    Some stage has at least its share of the whole. Where a micro-batch goes there and back again, stage s waits for
    the way through those before it, P; of all ways to share out the work t of a micro-batch, the one in which
    P + m t_s is the same c for every stage is the best, and there c = t / (1 - (1 - 1 / m) ** stages).
    """
    whole: npt.NDArray[np.float64] = rows[WHOLE] / case.stages
    if case.stages > 1 and "zero_bubble" not in case.schedules:
        m = case.micro_batches
        whole = np.maximum(whole, rows[MICRO] / (1 - (1 - 1 / m) ** case.stages))
    return whole


def sets_below(
    space: PlanSpace, case: Case, bounds: GroupBounds, limit: float, memory_limit: float
) -> Iterator[tuple[float, frozenset[int]]]:
    """The sets of groups whose bound is below `limit` seconds, with it; group by group, all that cannot be dropped."""
    masks = np.zeros(1, np.int64)
    ids = [g.id for g in space.groups]
    rows = bounds.level(()).of(masks)
    for place in range(len(ids)):
        masks = space.extended(masks, place, case.mesh[1])
        rows = bounds.level(ids[: place + 1]).of(space.carried(masks, place + 1))
        keep = (least_seconds(case, rows) < limit) & (rows[HELD_BYTES] / case.stages <= memory_limit)
        masks, rows = masks[keep], rows[:, keep]
    if case.mesh[1] > 1:
        masks, rows = masks[masks > 0], rows[:, masks > 0]
    for bound, mask in zip(least_seconds(case, rows).tolist(), masks.tolist(), strict=True):
        yield bound, groups_of(ids, mask)


def groups_of(ids: list[int], mask: int) -> frozenset[int]:
    """The ids whose bits are set."""
    return frozenset(id_ for bit, id_ in enumerate(ids) if mask >> bit & 1)
