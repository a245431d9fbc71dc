"""The exact oracle: the best plan of the whole space, with its proof, by branch and bound.

Plans are trees of cases and groups (`group_tree.py`). At every node, the costs that no plan below it undercuts are a
pipeline problem of their own, whose best cuts (`cut_program.py`) take no longer than any of those plans. So a node has
two bounds, a quick one and an exact one; a leaf's exact one is its best plan.

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
from typing import ClassVar

from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.decision import Storage
from automap_launch.plan.group_bounds import HELD_BYTES, WHOLE
from automap_launch.search.cut_program import CutProgram
from automap_launch.search.evaluator import Evaluator
from automap_launch.search.group_tree import Branch, Case, GroupTree, cases_of, least_seconds, sets_below
from automap_launch.search.searchers import OnEpisode
from automap_launch.search.space import BoundedCostModel, Mesh

# A plan is taken as the best when no other is faster by more than this share.
TOLERANCE = 1e-4
# Two sums of the same numbers in another order differ by less.
_ROUNDING = 1e-9
_SINGLES = 256
# So many cuts are looked at to bound a node, and each time so many times more, until it is opened with what is known.
_EFFORT, _MORE, _MOST = 2000.0, 8.0, 128_000.0


@dataclass(frozen=True)
class _Node:
    """A branch, or a case that has not been looked at.

    Attributes:
      bound: no plan takes less, in seconds.
      branch: None: all plans of the case, which nothing but `bound` is known of.
      solved: `bound` is the exact one, or as near to it as it will be. effort: cuts that are looked at for it next.
    """

    bound: float
    case: Case
    branch: Branch | None = None
    solved: bool = False
    effort: float = _EFFORT

    @property
    def place(self) -> int:
        return 0 if self.branch is None else self.branch.place


class Oracle:
    """Proves the best plan; what it learns on the way is in the evaluator (`best`, `lower_bound`).

    Args:
      model: the evaluator's. tolerance: see `TOLERANCE`.
    """

    name: ClassVar[str] = "oracle"

    def __init__(self, model: BoundedCostModel, tolerance: float = TOLERANCE) -> None:
        self._model = model
        self._tolerance = max(tolerance, _ROUNDING)

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        """Looks at everything that could beat the best plan known.

        Raises:
          SearchEnd: the evaluator's, when a limit is reached; `evaluator.lower_bound` holds what is proven by then.
        """
        _Proof(self._model, evaluator, self._tolerance).run()


class _Proof:
    """One run of the oracle, and its open nodes."""

    def __init__(self, model: BoundedCostModel, evaluator: Evaluator, tolerance: float) -> None:
        self._model = model
        self._evaluator = evaluator
        self._tolerance = tolerance
        self._tree = GroupTree(model, evaluator.space)
        self._open: list[tuple[float, int, int, _Node]] = []
        self._count = itertools.count()

    @property
    def limit(self) -> float:
        """Only plans below it are worth a look."""
        best = math.inf if self._evaluator.best is None else self._evaluator.best.estimate.step_seconds
        return best * (1 - self._tolerance)

    def run(self) -> None:
        for bound, case in bounded_cases(self._model, self._evaluator, lambda: self.limit):
            self._push(_Node(bound, case))
        while self._open and self._open[0][0] < self.limit:
            node = heapq.heappop(self._open)[-1]
            self._evaluator.raise_lower_bound(node.bound)
            self._evaluator.check_limits()
            if node.case.stages == 1:
                self._close_single(node.case)
            elif node.branch is None:
                self._plunge(node)
            else:
                self._visit(node, node.branch)
        self._evaluator.raise_lower_bound(math.inf)

    def _push(self, node: _Node) -> None:
        """Keeps a node that may hold a better plan; of those with one bound, that with the most groups comes first."""
        if node.bound < self.limit:
            heapq.heappush(self._open, (node.bound, -node.place, next(self._count), node))

    def _close_single(self, case: Case) -> None:
        """The plans of one stage."""
        evaluator = self._evaluator
        bounds = self._model.group_bounds(case.decision())
        below = sets_below(evaluator.space, case, bounds, self.limit, evaluator.model.memory_limit)
        sets = sorted(below, key=lambda item: item[0])
        for first in range(0, len(sets), _SINGLES):
            part = [sharded for bound, sharded in sets[first : first + _SINGLES] if bound < self.limit]
            evaluator.estimate_many([case.decision(sharded) for sharded in part])

    def _plunge(self, node: _Node) -> None:
        """Opens a case, and goes on with the best child until there is none."""
        children = self._branched(node, Branch(node.case))
        while children:
            (best, branch), *others = sorted(children, key=lambda child: child[0].bound)
            for other, _ in others:
                self._push(other)
            best = self._solved(best, branch)
            if self._tree.is_leaf(branch):
                self._push(best)
                return
            children = self._branched(best, branch)

    def _visit(self, node: _Node, branch: Branch) -> None:
        """Solves a node, or opens it when that is done."""
        if node.solved:
            for child, _ in self._branched(node, branch):
                self._push(child)
        else:
            self._push(self._solved(node, branch))

    def _branched(self, node: _Node, branch: Branch) -> list[tuple[_Node, Branch]]:
        """The children that may hold a better plan."""
        found = []
        if node.bound < self.limit:
            for child in self._tree.children(branch):
                least = min(program.lower_bound for program in self._programs(child, self._tree.costs(child)))
                if least < self.limit:
                    found.append((_Node(max(node.bound, least), node.case, child), child))
        return found

    def _solved(self, node: _Node, branch: Branch) -> _Node:
        """A node with its bound by the best cuts. A leaf stays to be solved with more effort, unless its bound says
        that it has no better plan than the best one known, which was estimated then."""
        leaf = self._tree.is_leaf(branch)
        bound, exact = self._leaf_bound(node, branch) if self._pinned else self._bound_by_cuts(node, branch)
        if leaf and exact:
            bound = math.inf
        solved = not leaf and (exact or node.effort >= _MOST)
        return replace(node, bound=max(node.bound, bound), solved=solved, effort=_MORE * node.effort)

    @property
    def _pinned(self) -> bool:
        return self._evaluator.space.pins.cuts is not None

    def _leaf_bound(self, node: _Node, branch: Branch) -> tuple[float, bool]:
        """Where cuts are pinned, a leaf is as many plans as there are schedules; other nodes keep their quick bound."""
        if self._tree.is_leaf(branch):
            decision = self._tree.decision(branch)
            self._evaluator.estimate_many([replace(decision, schedule=schedule) for schedule in node.case.schedules])
        return node.bound, True

    def _bound_by_cuts(self, node: _Node, branch: Branch) -> tuple[float, bool]:
        """A bound, at most the limit, and whether it is exact below that. A leaf's plans are estimated."""
        evaluator, costs, leaf = self._evaluator, self._tree.costs(branch), self._tree.is_leaf(branch)
        bound = best = self.limit
        for program in sorted(self._programs(branch, costs), key=lambda program: program.lower_bound):
            if program.lower_bound >= best:
                break
            found = program.best(best, node.effort, evaluator.check_limits)
            bound, best = min(bound, found.bound), min(best, found.seconds)
            if leaf and found.cuts is not None:
                decision = self._tree.decision(branch)
                evaluator.estimate(replace(decision, cuts=found.cuts, schedule=program.schedule))
        return bound, bound >= best

    def _programs(self, branch: Branch, costs: BlockCosts) -> list[CutProgram]:
        limit = self._evaluator.model.memory_limit
        return [CutProgram(costs, branch.case.stages, schedule, limit) for schedule in branch.case.schedules]


def bounded_cases(
    model: BoundedCostModel, evaluator: Evaluator, limit: Callable[[], float]
) -> Iterator[tuple[float, Case]]:
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
        constant = model.group_bounds(case.decision()).level(()).constant
        least[family] = constant[WHOLE] / case.stages
        if constant[HELD_BYTES] / case.stages <= model.memory_limit:
            yield float(least_seconds(case, constant[:, None])[0]), case
