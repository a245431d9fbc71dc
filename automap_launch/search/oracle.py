"""The exact oracle: the best plan of the whole space, with its proof, by branch and bound.

A *case* is a mesh, a number of micro-batches, a storage and a number of stages. Its plans are a tree: each level
decides whether one more linkage group is sharded. What blocks cost at least, however the undecided groups are taken
(`plan/block_bounds.py`), is a pipeline problem of its own, whose best cuts (`cut_program.py`) take no longer than any
plan below. So every node has two bounds, a quick one and an exact one; a leaf's is its best plan.

Of all open nodes the one with the lowest bound comes next, and from a case the search plunges once to a leaf, for a
good plan early. Everything is bounded from the beginning, so at any moment the lowest bound of the open nodes is one of
every plan: the gap to it is known also when time runs out. Plans of one stage have no cuts, and their sets of groups
are decided all at once (`plan/group_bounds.py`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_bounds import BlockBounds
from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.decision import Decision, Schedule, Storage
from automap_launch.plan.group_bounds import HELD_BYTES, MICRO, WHOLE, GroupBounds
from automap_launch.search.cut_program import CutProgram
from automap_launch.search.evaluator import Evaluator
from automap_launch.search.searchers import OnEpisode
from automap_launch.search.space import Mesh, PlanSpace

# A plan is taken as the best when no other is faster by more than this share.
TOLERANCE = 1e-4
# Two sums of the same numbers in another order differ by less.
_ROUNDING = 1e-9
_SINGLES = 256
_CASES = 16  # of which the blocks' bounds are kept
# So many plans are timed to bound a node; of a leaf, each time so many times more.
_EFFORT, _MORE = 1000.0, 8.0


@dataclass(frozen=True)
class Case:
    """Plans that share all but groups, schedule and cuts."""

    mesh: Mesh
    micro_batches: int
    storage: Storage
    stages: int
    schedules: tuple[Schedule, ...]


@dataclass(frozen=True)
class _Node:
    """Plans of a case of which the first groups are decided.

    Attributes:
      bound: no plan takes less, in seconds.
      place: how many of the space's groups are decided; None: the case has not been looked at. mask: those that are
        sharded.
      solved: its best cuts have been looked for, and `bound` says what came of it. effort: plans that are timed for it.
    """

    bound: float
    case: Case
    place: int | None = None
    mask: int = 0
    solved: bool = False
    effort: float = _EFFORT


class Oracle:
    """Proves the best plan; what it learns on the way is in the evaluator (`best`, `lower_bound`).

    Args:
      tolerance: see `TOLERANCE`.
    """

    name: ClassVar[str] = "oracle"

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self._tolerance = max(tolerance, _ROUNDING)

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        """Looks at everything that could beat the best plan known.

        Raises:
          SearchEnd: the evaluator's, when a limit is reached; `evaluator.lower_bound` holds what is proven by then.
        """
        _Proof(evaluator, self._tolerance).run()


class _Proof:
    """One run of the oracle: the open nodes, and what is kept of their cases."""

    def __init__(self, evaluator: Evaluator, tolerance: float) -> None:
        self._evaluator = evaluator
        self._tolerance = tolerance
        self._space = evaluator.space
        self._open: list[tuple[float, int, int, _Node]] = []
        self._count = itertools.count()
        self._blocks = lru_cache(maxsize=_CASES)(self._block_bounds)
        self._ids = [g.id for g in self._space.groups]

    @property
    def limit(self) -> float:
        """Only plans below it are worth a look."""
        best = math.inf if self._evaluator.best is None else self._evaluator.best.estimate.step_seconds
        return best * (1 - self._tolerance)

    def run(self) -> None:
        for bound, case in bounded_cases(self._evaluator, lambda: self.limit):
            self._push(_Node(bound, case))
        while self._open and self._open[0][0] < self.limit:
            node = heapq.heappop(self._open)[-1]
            self._evaluator.raise_lower_bound(node.bound)
            self._evaluator.check_limits()
            if node.case.stages == 1:
                self._close_single(node.case)
            elif node.place is None:
                self._plunge(node)
            else:
                self._visit(node)
        self._evaluator.raise_lower_bound(math.inf)

    def _push(self, node: _Node) -> None:
        if node.bound < self.limit:
            heapq.heappush(self._open, (node.bound, -(node.place or 0), next(self._count), node))

    def _close_single(self, case: Case) -> None:
        """The plans of one stage."""
        evaluator = self._evaluator
        bounds = evaluator.model.group_bounds(_decision(case))
        below = sets_below(self._space, case, bounds, self.limit, evaluator.model.memory_limit)
        sets = sorted(below, key=lambda item: item[0])
        for first in range(0, len(sets), _SINGLES):
            part = [sharded for bound, sharded in sets[first : first + _SINGLES] if bound < self.limit]
            evaluator.estimate_many([_decision(case, sharded) for sharded in part])

    def _plunge(self, node: _Node) -> None:
        """Opens a case, and goes on with the best child until there is none."""
        children = self._branched(node)
        while children:
            best, *others = sorted(children, key=lambda child: child.bound)
            for other in others:
                self._push(other)
            children = self._visit(best, plunge=True)

    def _visit(self, node: _Node, plunge: bool = False) -> list[_Node]:
        """Solves a node, or opens it where that is done; its children where the search plunges."""
        leaf = node.place == len(self._ids)
        if not node.solved:
            bound = self._solve(node)
            node = replace(node, bound=max(node.bound, bound), solved=not leaf, effort=_MORE * node.effort)
            # A leaf that is not below the limit now has been solved, or is not worth it.
            if leaf or (not plunge and self._open and node.bound > self._open[0][0]):
                self._push(node)
                return []
            if node.bound >= self.limit:
                return []
        children = self._branched(node)
        if plunge:
            return children
        for child in children:
            self._push(child)
        return []

    def _branched(self, node: _Node) -> list[_Node]:
        """The ways to decide the next group that may be sharded or not, those that may hold a better plan."""
        model = node.case.mesh[1]
        masks, place = np.array([node.mask], np.int64), node.place or 0
        while place < len(self._ids) and len(masks) == 1:
            masks = self._space.extended(masks, place, model)
            place += 1
        if place == len(self._ids) and model > 1:
            masks = masks[masks > 0]
        found = []
        for mask in masks.tolist():
            child = replace(node, place=place, mask=mask, solved=False)
            costs = self._costs(child)
            least = min(program.lower_bound for program in self._programs(child, costs))
            if least < self.limit:
                found.append(replace(child, bound=max(node.bound, least)))
        return found

    def _solve(self, node: _Node) -> float:
        """A bound of a node by its best cuts; of a leaf, infinite when it has no better plan than the best one known,
        which was estimated then."""
        evaluator, costs = self._evaluator, self._costs(node)
        leaf = node.place == len(self._ids)
        decision = _decision(node.case, _groups(self._ids, node.mask))
        if evaluator.space.pins.cuts is not None:
            decision = replace(decision, cuts=evaluator.space.pins.cuts)
            if leaf:
                evaluator.estimate_many([replace(decision, schedule=s) for s in node.case.schedules])
            return math.inf if leaf else node.bound
        bound = best = self.limit
        for program in sorted(self._programs(node, costs), key=lambda program: program.lower_bound):
            if program.lower_bound >= best:
                break
            found = program.best(best, node.effort, evaluator.check_limits)
            bound, best = min(bound, found.bound), min(best, found.seconds)
            if leaf and found.cuts is not None:
                evaluator.estimate(replace(decision, cuts=found.cuts, schedule=program.schedule))
        return math.inf if leaf and bound >= best else bound

    def _programs(self, node: _Node, costs: BlockCosts) -> list[CutProgram]:
        limit = self._evaluator.model.memory_limit
        return [CutProgram(costs, node.case.stages, schedule, limit) for schedule in node.case.schedules]

    def _costs(self, node: _Node) -> BlockCosts:
        """Of blocks under any plan of a node."""
        place = node.place or 0
        if place == len(self._ids):
            return self._evaluator.model.block_costs(_decision(node.case, _groups(self._ids, node.mask)))
        decided = self._space.carried(np.array([node.mask], np.int64), place)
        return self._blocks(node.case).least(_groups(self._ids, int(decided[0])), frozenset(self._ids[place:]))

    def _block_bounds(self, case: Case) -> BlockBounds:
        return self._evaluator.model.block_bounds(_decision(case))


def bounded_cases(evaluator: Evaluator, limit: Callable[[], float]) -> Iterator[tuple[float, Case]]:
    """Cases that may hold a better plan, with a bound over all their plans.

    More micro-batches never make all blocks together faster: weights are read once more, and messages wait once
    more. So a case that cannot beat the best plan rules out those with more micro-batches.
    """
    least: dict[tuple[Mesh, Storage, bool], float] = {}
    for case in sorted(cases_of(evaluator.space), key=lambda case: case.micro_batches):
        # A whole step is fused otherwise than one that is cut into micro-batches.
        family = (case.mesh, case.storage, case.stages == case.micro_batches == 1)
        if least.get(family, 0.0) >= limit():
            continue
        evaluator.check_limits()
        constant = evaluator.model.group_bounds(_decision(case)).level(()).constant
        least[family] = constant[WHOLE] / case.stages
        if constant[HELD_BYTES] / case.stages <= evaluator.model.memory_limit:
            yield float(least_seconds(case, constant[:, None])[0]), case


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
        yield bound, _groups(ids, mask)


def _groups(ids: list[int], mask: int) -> frozenset[int]:
    return frozenset(id_ for bit, id_ in enumerate(ids) if mask >> bit & 1)


def _decision(case: Case, sharded: frozenset[int] = frozenset()) -> Decision:
    """A decision of the case; its cuts stand for others."""
    cuts = tuple(range(1, case.stages))
    return Decision(*case.mesh, sharded, case.storage, case.micro_batches, cuts, case.schedules[0])
