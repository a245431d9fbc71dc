"""The exact oracle: the best plan of the whole space, with its proof.

A *case* is a mesh, a number of micro-batches and a storage. Its sets of groups are found by deciding one group after
the other and dropping what cannot beat the best plan known. Two bounds say so, of all ways to decide the rest:
1. what all blocks together cost, shared out among the stages (`plan/group_bounds.py`): thousands of sets at once;
2. the least that any cuts of the blocks and any schedule lead to, each block being at its cheapest
   (`plan/block_bounds.py`, `cut_program.py`): dearer, and so tight that most cases fall before any group is decided.
Of what is left the cut program finds the best cuts. Cases are taken in the order of their bound, so that at any moment
the next one's is a lower bound of every plan: the gap to it is known also when time runs out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.decision import Decision, Schedule, Storage
from automap_launch.plan.group_bounds import HELD_BYTES, MICRO, WHOLE, GroupBounds
from automap_launch.search.cut_program import CutProgram
from automap_launch.search.evaluator import Evaluator
from automap_launch.search.searchers import OnEpisode
from automap_launch.search.space import Mesh, PlanSpace

# Two sums of the same numbers in another order differ by less.
TOLERANCE = 1e-9
_SINGLES = 256


@dataclass(frozen=True)
class Case:
    """Plans that share all but groups, schedule and cuts."""

    mesh: Mesh
    micro_batches: int
    storage: Storage
    stages: int
    schedules: tuple[Schedule, ...]


@dataclass(frozen=True)
class _Open:
    """A case and a set of sharded groups, of which no plan takes less than `bound` seconds."""

    bound: float
    case: Case
    sharded: frozenset[int]


class Oracle:
    """Proves the best plan; what it learns on the way is in the evaluator (`best`, `lower_bound`)."""

    name: ClassVar[str] = "oracle"

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        """Looks at everything that could beat the best plan known.

        Raises:
          SearchEnd: the evaluator's, when a limit is reached; `evaluator.lower_bound` holds what is proven by then.
        """
        bounded = self._with_blocks(evaluator, self._bounded(evaluator))
        for bound, case, bounds in bounded:
            if bound >= _limit(evaluator):
                break
            evaluator.raise_lower_bound(bound)
            evaluator.check_limits()
            self._close(evaluator, self._open_sets(evaluator, bound, case, bounds))
        evaluator.raise_lower_bound(math.inf)

    def _with_blocks(
        self, evaluator: Evaluator, cases: list[tuple[float, Case, GroupBounds]]
    ) -> list[tuple[float, Case, GroupBounds]]:
        """Cases with the better of their bounds, in its order; without those that cannot beat the best plan."""
        found: list[tuple[float, Case, GroupBounds]] = []
        for bound, case, bounds in cases:
            if bound >= _limit(evaluator):
                break
            evaluator.raise_lower_bound(min([bound, *(other for other, _, _ in found)]))
            evaluator.check_limits()
            own = 0.0
            if case.stages > 1:
                blocks = evaluator.model.block_bounds(_decision(case))
                undecided = frozenset(g.id for g in evaluator.space.groups)
                own = _least_of_cuts(case, blocks.least(frozenset(), undecided), evaluator.model.memory_limit)
            if own < _limit(evaluator):
                found.append((max(bound, own), case, bounds))
        return sorted(found, key=lambda item: item[0])

    def _open_sets(self, evaluator: Evaluator, bound: float, case: Case, bounds: GroupBounds) -> list[_Open]:
        """A case's sets of groups that may hold a better plan, in the order of their bounds."""
        model, space, limit = evaluator.model, evaluator.space, _limit(evaluator)
        refine = None
        if case.stages > 1:
            blocks = model.block_bounds(_decision(case))

            def refine(sharded: frozenset[int], undecided: frozenset[int]) -> bool:
                evaluator.check_limits()
                costs = blocks.least(sharded, undecided)
                # The last schedule has the smallest bubble: where some pipeline is below, it mostly is.
                return any(
                    CutProgram(costs, case.stages, schedule, model.memory_limit).lower_bound < limit
                    for schedule in reversed(case.schedules)
                )

        sets = sets_below(space, case, bounds, limit, model.memory_limit, refine=refine)
        open_ = [_Open(max(bound, own), case, sharded) for own, sharded in sets]
        return sorted(open_, key=lambda o: o.bound)

    def _bounded(self, evaluator: Evaluator) -> list[tuple[float, Case, GroupBounds]]:
        """Cases that may hold a better plan, with the bound over all their sets of groups.

        More micro-batches never make all blocks together faster: weights are read once more, and messages wait once
        more. So a case that cannot beat the best plan rules out those with more micro-batches.
        """
        found = []
        least: dict[tuple[Mesh, Storage, bool], float] = {}
        for case in sorted(cases_of(evaluator.space), key=lambda case: case.micro_batches):
            # A whole step is fused otherwise than one that is cut into micro-batches.
            family = (case.mesh, case.storage, case.stages == case.micro_batches == 1)
            if least.get(family, 0.0) >= _limit(evaluator):
                continue
            evaluator.check_limits()
            bounds = evaluator.model.group_bounds(_decision(case))
            constant = bounds.level(()).constant
            least[family] = constant[WHOLE] / case.stages
            if constant[HELD_BYTES] / case.stages <= evaluator.model.memory_limit:
                found.append((least_seconds(case, constant[:, None])[0], case, bounds))
        return sorted(found, key=lambda item: item[0])

    def _close(self, evaluator: Evaluator, open_: list[_Open]) -> None:
        singles: list[Decision] = []
        for item in open_:
            if item.bound >= _limit(evaluator):
                break
            if item.case.stages == 1:
                singles.append(_decision(item.case, item.sharded))
                if len(singles) == _SINGLES:
                    evaluator.estimate_many(singles)
                    singles = []
                continue
            evaluator.check_limits()
            costs = evaluator.model.block_costs(_decision(item.case, item.sharded))
            for schedule in item.case.schedules:
                if evaluator.space.pins.cuts is not None:
                    pinned = replace(_decision(item.case, item.sharded), cuts=evaluator.space.pins.cuts)
                    evaluator.estimate(replace(pinned, schedule=schedule))
                    continue
                self._best_cuts(evaluator, item, costs, schedule)
        if singles:
            evaluator.estimate_many(singles)

    def _best_cuts(self, evaluator: Evaluator, item: _Open, costs: BlockCosts, schedule: Schedule) -> None:
        program = CutProgram(costs, item.case.stages, schedule, evaluator.model.memory_limit)
        if program.lower_bound >= _limit(evaluator):
            return
        found = program.best(_limit(evaluator))
        if found.cuts is not None:
            evaluator.estimate(replace(_decision(item.case, item.sharded), cuts=found.cuts, schedule=schedule))


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
    space: PlanSpace,
    case: Case,
    bounds: GroupBounds,
    limit: float,
    memory_limit: float,
    *,
    refine: Callable[[frozenset[int], frozenset[int]], bool] | None = None,
) -> Iterator[tuple[float, frozenset[int]]]:
    """The sets of groups whose bound is below `limit` seconds, with it; group by group, all that cannot be dropped.

    Args:
      refine: whether a dearer bound is below `limit`, too: of all sets that have some groups, and any of those that
        are undecided.
    """
    masks = np.zeros(1, np.int64)
    ids = [g.id for g in space.groups]
    rows = bounds.level(()).of(masks)
    free = space.free_groups(case.mesh[1])
    for place, id_ in enumerate(ids):
        masks = space.extended(masks, place, case.mesh[1])
        rows = bounds.level(ids[: place + 1]).of(masks)
        keep = (least_seconds(case, rows) < limit) & (rows[HELD_BYTES] / case.stages <= memory_limit)
        undecided = frozenset(ids[place + 1 :])
        # Where nothing was decided, or all is, the bound says no more than before, or than the cut program will.
        if refine is not None and id_ in free and not undecided.isdisjoint(free):
            for k in np.flatnonzero(keep).tolist():
                keep[k] = refine(_groups(ids, int(masks[k])), undecided)
        masks, rows = masks[keep], rows[:, keep]
    if case.mesh[1] > 1:
        masks, rows = masks[masks > 0], rows[:, masks > 0]
    for bound, mask in zip(least_seconds(case, rows).tolist(), masks.tolist(), strict=True):
        yield bound, _groups(ids, mask)


def _groups(ids: list[int], mask: int) -> frozenset[int]:
    return frozenset(id_ for bit, id_ in enumerate(ids) if mask >> bit & 1)


def _least_of_cuts(case: Case, costs: BlockCosts, memory_limit: float) -> float:
    """No pipeline of the case with these costs takes less; infinite where none fits."""
    programs = (CutProgram(costs, case.stages, schedule, memory_limit) for schedule in case.schedules)
    return min(program.lower_bound for program in programs)


def _decision(case: Case, sharded: frozenset[int] = frozenset()) -> Decision:
    """A decision of the case; its cuts stand for others."""
    cuts = tuple(range(1, case.stages))
    return Decision(*case.mesh, sharded, case.storage, case.micro_batches, cuts, case.schedules[0])


def _limit(evaluator: Evaluator) -> float:
    """Only plans below it are worth a look."""
    best = math.inf if evaluator.best is None else evaluator.best.estimate.step_seconds
    return best * (1 - TOLERANCE)
