import numpy as np

from automap_launch.search.anneal import AnnealingSearcher
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd, log_cost
from automap_launch.search.local_search import LABEL, climb, farther, neighbours
from automap_launch.search.searchers import random_plan, simple_plans
from tests.search.test_oracle import tiny_models


def test_neighbours_are_other_plans_of_the_space_each_once():
    rng = np.random.default_rng(0)
    for _, space in tiny_models(8):
        for decision in (random_plan(space, rng) for _ in range(10)):
            near = neighbours(space, decision)
            assert len(near) == len(set(near))
            assert decision not in near
            assert all(d in space for d in near)


def test_every_plan_of_a_space_is_reached_by_steps():
    for _, space in tiny_models(5, seed=5):
        every, reached, open_ = set(space), set(), [space.complete(space.start())]
        while open_:
            decision = open_.pop()
            if decision not in reached:
                reached.add(decision)
                open_ += neighbours(space, decision)
        assert len(reached) > 0.95 * len(every)


def test_climbing_ends_where_no_neighbour_is_better_and_says_that_it_found_it():
    rng = np.random.default_rng(1)
    improved = 0
    for model, space in tiny_models(8):
        evaluator = Evaluator(model, space)
        evaluator.found_by = "test"
        start = random_plan(space, rng)
        top = climb(evaluator, start)
        cost = log_cost(model.estimate(top), model.memory_limit)
        assert all(log_cost(e, model.memory_limit) >= cost for e in model.estimate_many(neighbours(space, top)))
        assert evaluator.found_by == "test"
        improved += top != start and evaluator.best is not None and evaluator.best.found_by == LABEL
    assert improved > 4


def test_longer_steps_leave_where_no_neighbour_is_better():
    rng = np.random.default_rng(2)
    left = 0
    for model, space in tiny_models(12):
        evaluator = Evaluator(model, space)
        for start in (random_plan(space, rng) for _ in range(6)):
            near = climb(evaluator, start)
            top = climb(evaluator, near, far=True)
            costs = [log_cost(evaluator.estimate(d), model.memory_limit) for d in (top, *farther(space, top))]
            assert min(costs) == costs[0]
            left += costs[0] < log_cost(evaluator.estimate(near), model.memory_limit)
        assert all(d in space for d in farther(space, top))
    assert left


def test_annealing_finds_good_plans_and_with_the_same_seed_the_same():
    model, space = max(tiny_models(10), key=lambda pair: pair[1].size)
    curves = []
    for _ in range(2):
        evaluator = Evaluator(model, space, Limits(evaluations=space.size // 2))
        evaluator.found_by = AnnealingSearcher.name
        try:
            AnnealingSearcher(seed=0, steps=100).run(evaluator, lambda event: None)
        except SearchEnd:
            curves.append([(e.decision, e.evaluations) for e in evaluator.curve])
    assert curves[0] == curves[1]
    assert curves[0]
    simple = min((e.step_seconds for e in model.estimate_many(simple_plans(space)) if e.fits), default=np.inf)
    assert evaluator.best.estimate.step_seconds <= 1.5 * simple
