"""Bounds at the nodes of the tree of groups are below every plan that the nodes stand for."""

from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.decision import Decision
from automap_launch.search.cut_program import CutProgram
from automap_launch.search.group_tree import Branch, GroupTree, cases_of, least_seconds, sets_below
from tests.search.test_oracle import pinned_space, tiny_models


def test_bounds_of_groups_are_below_every_plan():
    for model, space in tiny_models(15, seed=3):
        for case in cases_of(space)[::5]:
            cuts = tuple(range(1, case.stages))
            one = Decision(*case.mesh, frozenset(), case.storage, case.micro_batches, cuts, case.schedules[0])
            bounds = model.group_bounds(one)
            below = {sharded: bound for bound, sharded in sets_below(space, case, bounds, np.inf, np.inf)}
            assert set(below) == set(space.group_sets(case.mesh[1]))
            for sharded, bound in below.items():
                plans = [replace(one, sharded=sharded, cuts=cuts) for cuts in space.cut_sets(case.stages)]
                assert bound <= min(e.step_seconds for e in model.estimate_many(plans)) * (1 + 1e-9)
                assert least_seconds(case, bounds.level(()).constant[:, None])[0] <= bound * (1 + 1e-9)


def test_bounds_of_blocks_are_below_every_plan():
    for model, space in tiny_models(10, seed=5):
        groups = frozenset(g.id for g in space.groups)
        for case in [case for case in cases_of(space) if case.stages > 1][::7]:
            cuts = tuple(range(1, case.stages))
            one = Decision(*case.mesh, frozenset(), case.storage, case.micro_batches, cuts, case.schedules[0])
            blocks = model.block_bounds(one)
            for sharded in space.group_sets(case.mesh[1]):
                undecided = groups - set(sorted(groups)[:1])
                least = blocks.least(sharded - undecided, undecided)
                plans = [replace(one, sharded=sharded, cuts=cuts) for cuts in space.cut_sets(case.stages)]
                fastest = min((e.step_seconds for e in model.estimate_many(plans) if e.fits), default=np.inf)
                bound = CutProgram(least, case.stages, case.schedules[0], model.memory_limit).lower_bound
                assert bound <= fastest * (1 + 1e-9)


@pytest.mark.parametrize("dims", [(0, 1), (1,)])
def test_a_pinned_group_that_a_larger_one_outranks_is_priced_as_it_shards(dims):
    model, space = pinned_space(dims)
    plans = list(space)
    costs = [e.step_seconds for e in model.estimate_many(plans)]
    for case in cases_of(space):
        bounds = model.group_bounds(case.decision())
        for bound, sharded in sets_below(space, case, bounds, np.inf, np.inf):
            own = [c for c, d in zip(costs, plans, strict=True) if d.sharded == sharded and d.stages == case.stages]
            assert bound <= min(own) * (1 + 1e-9)


def test_leaves_are_all_sets_of_groups_once():
    for model, space in tiny_models(10, seed=7):
        tree = GroupTree(model, space)
        for case in cases_of(space)[::5]:
            leaves, open_ = [], [Branch(case)]
            while open_:
                branch = open_.pop()
                if tree.is_leaf(branch):
                    leaves.append(tree.decision(branch).sharded)
                else:
                    open_ += tree.children(branch)
            assert sorted(map(sorted, leaves)) == sorted(map(sorted, space.group_sets(case.mesh[1])))
