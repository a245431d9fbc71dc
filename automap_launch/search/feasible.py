"""How many plans of a space fit in memory: enough of them for a search to be worth its name?"""

from __future__ import annotations

import numpy as np

from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.decision import Schedule
from automap_launch.plan.group_bounds import HELD_BYTES
from automap_launch.search.cut_program import fitting_runs
from automap_launch.search.group_tree import Branch, Case, GroupTree, cases_of, sets_below
from automap_launch.search.space import BoundedCostModel, PlanSpace

_SINGLES = 256


def count_feasible(model: BoundedCostModel, space: PlanSpace, at_least: int) -> int:
    """The number of plans that fit; where there are `at_least` or more, some number that is not less.

    Cases that need the least memory come first, so that where many plans fit few are looked at.
    """
    cases: list[tuple[float, int, Case]] = []
    for case in cases_of(space):
        held = float(model.group_bounds(case.decision()).level(()).constant[HELD_BYTES]) / case.stages
        if held <= model.memory_limit:
            cases.append((held, len(cases), case))
    tree, found = GroupTree(model, space), 0
    for _, _, case in sorted(cases):
        if case.stages == 1:
            found += _single_stages(model, space, case, at_least - found)
        else:
            found += _pipelines(model, space, tree, Branch(case), at_least - found)
        if found >= at_least:
            break
    return found


def _single_stages(model: BoundedCostModel, space: PlanSpace, case: Case, at_least: int) -> int:
    bounds = model.group_bounds(case.decision())
    sets = [sharded for _, sharded in sets_below(space, case, bounds, np.inf, model.memory_limit)]
    # Those that shard the most groups need the least.
    sets.sort(key=len, reverse=True)
    found = 0
    for first in range(0, len(sets), _SINGLES):
        part = [case.decision(sharded) for sharded in sets[first : first + _SINGLES]]
        found += sum(estimate.fits for estimate in model.estimate_many(part))
        if found >= at_least:
            break
    return found


def _pipelines(model: BoundedCostModel, space: PlanSpace, tree: GroupTree, branch: Branch, at_least: int) -> int:
    costs = tree.costs(branch)
    pinned, case = space.pins.cuts, branch.case
    if pinned is None:
        most = sum(fitting_cuts(costs, case.stages, schedule, model.memory_limit) for schedule in case.schedules)
    else:
        cuts = np.array([pinned], np.int64)
        plans = [costs.pipelines(schedule, cuts) for schedule in case.schedules]
        most = sum(int(plan.fits(model.memory_limit)[0]) for plan in plans)
    if most == 0 or tree.is_leaf(branch):
        return most
    found = 0
    # Children that shard one group more come first: they need less.
    for child in reversed(tree.children(branch)):
        found += _pipelines(model, space, tree, child, at_least - found)
        if found >= at_least:
            break
    return found


def fitting_cuts(costs: BlockCosts, stages: int, schedule: Schedule, memory_limit: float) -> int:
    """The number of cuts into so many stages of which every stage may fit; of a program that keeps layers of a loop
    on other stages than run them (`plan/lending.py`), that is not what all of them do."""
    fits = fitting_runs(costs, costs.every_run(), stages, schedule, memory_limit)
    ways = np.zeros(costs.blocks + 1, np.int64)
    ways[0] = 1
    for stage in range(stages):
        ways = ways[:-1] @ fits[stage].astype(np.int64)
    return int(ways[costs.blocks])
