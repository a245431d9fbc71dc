import pytest

from automap_launch.plan.decision import Decision
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Memory
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd, log_cost
from automap_launch.search.space import PlanSpace
from tests.search.synthetic import Cost, Problem


def evaluator(problem: Problem, **limits) -> Evaluator:
    space = PlanSpace.pinned(problem.program, Pins(problem.devices))
    return Evaluator(problem, space, Limits(**limits))


def cost(seconds: float, fits: bool = True, memory: int = 10) -> Cost:
    return Cost(seconds, 0.0, Memory(memory, 0, 0, 0), fits)


def test_each_plan_is_costed_once():
    problem = Problem()
    costs = evaluator(problem)
    one, two = Decision(8, 1), Decision(4, 2)
    first = costs.estimate_many([one, two, one])
    assert costs.estimate_many([two, one]) == [first[1], first[0]]
    assert (costs.evaluations, problem.calls) == (2, 1)


def test_plans_beyond_the_limit_are_not_costed():
    problem = Problem()
    costs = evaluator(problem, evaluations=3)
    plans = [Decision(8, 1, storage=s) for s in ("none", "optimizer", "state")] + [Decision(4, 2)]
    with pytest.raises(SearchEnd) as end:
        costs.estimate_many(plans)
    assert (end.value.reason, costs.evaluations) == ("evaluations", 3)


@pytest.mark.parametrize(
    ("limits", "now", "reason"),
    [({"seconds": 10}, 10.5, "budget"), ({"patience": 3}, 3.5, "patience"), ({"stop": lambda: True}, 0, "stopped")],
)
def test_each_limit_ends_the_search_by_its_name(limits, now, reason):
    problem = Problem()
    time = [0.0]
    space = PlanSpace.pinned(problem.program, Pins(8))
    costs = Evaluator(problem, space, Limits(**limits), clock=lambda: time[0])
    costs.seed({"plain": Decision(8, 1)}, ["plain"])
    time[0] = now
    with pytest.raises(SearchEnd) as end:
        costs.estimate(Decision(8, 1))
    assert end.value.reason == reason


def patient(seconds: float) -> tuple[Problem, Evaluator, list[float]]:
    """An evaluator with this patience, and the time on its clock."""
    time = [0.0]
    problem = Problem()
    space = PlanSpace.pinned(problem.program, Pins(8))
    return problem, Evaluator(problem, space, Limits(patience=seconds), clock=lambda: time[0]), time


def test_an_improvement_restarts_patience_which_is_as_long_as_what_was_found_took():
    problem, costs, time = patient(3)
    slow, fast = sorted(
        [Decision(8, 1), Decision(8, 1, storage="state")], key=lambda d: -problem.estimate(d).step_seconds
    )
    time[0] = 2.0
    costs.estimate(slow)
    time[0] = 4.9  # less than 3 s later
    costs.estimate(fast)
    time[0] = 9.7
    costs.estimate(slow)
    time[0] = 9.8
    with pytest.raises(SearchEnd):
        costs.estimate(slow)


def test_patience_counts_from_the_beginning_of_a_phase():
    _, costs, time = patient(3)
    costs.estimate(Decision(8, 1))
    time[0] = 150.0
    costs.begin(costs.limits)
    time[0] = 152.9
    costs.check_limits()
    time[0] = 153.0
    with pytest.raises(SearchEnd):
        costs.check_limits()


def test_patience_waits_for_a_plan_that_fits():
    problem = Problem(memory_bytes=10)
    time = [0.0]
    space = PlanSpace.pinned(problem.program, Pins(8))
    costs = Evaluator(problem, space, Limits(patience=3), clock=lambda: time[0])
    costs.estimate(Decision(8, 1))
    time[0] = 1000.0
    costs.estimate(Decision(8, 1))
    assert costs.best is None


@pytest.mark.parametrize(("nearer", "goes_on"), [(0.99, False), (0.85, True)])
def test_a_better_bound_is_progress_when_the_gap_shrinks_noticeably(nearer: float, goes_on: bool):
    _, costs, time = patient(3)
    seconds = costs.estimate(Decision(8, 1)).step_seconds
    costs.raise_lower_bound(seconds / 1.2)
    time[0] = 2.0
    costs.raise_lower_bound(seconds / (1 + 0.2 * nearer))
    time[0] = 4.0
    if goes_on:
        costs.check_limits()
    else:
        with pytest.raises(SearchEnd):
            costs.check_limits()


def test_a_searcher_may_go_on_in_a_space_that_is_exhausted():
    problem = Problem(pair_count=1, lure_count=0, burden_count=0)
    costs = evaluator(problem, exhaustion=False)
    costs.estimate_many(list(costs.space))
    costs.estimate(Decision(8, 1))
    costs.begin(Limits())
    with pytest.raises(SearchEnd) as end:
        costs.estimate(Decision(8, 1))
    assert end.value.reason == "exhausted"


def test_a_plan_that_does_not_fit_is_never_the_best_but_may_be_the_closest():
    problem = Problem(memory_bytes=10)
    costs = evaluator(problem)
    costs.estimate_many([Decision(8, 1), Decision(8, 1, storage="state")])
    assert costs.best is None
    assert costs.closest == problem.estimate(Decision(8, 1, storage="state"))


def test_improvements_are_told_in_order_with_who_found_them():
    problem = Problem()
    events = []
    costs = evaluator(problem)
    costs.on_improvement = events.append
    costs.seed({"slow": Decision(8, 1, storage="state"), "fast": Decision(8, 1)}, in_race=["slow", "fast"])
    costs.found_by = "someone"
    costs.estimate_many([Decision(8, 1, storage="optimizer"), Decision(2, 4, frozenset(sum(problem.pairs, ())))])
    assert [e.found_by for e in events] == ["slow", "fast", "someone"]
    assert costs.best is events[-1]
    assert costs.curve == events
    seconds = [e.estimate.step_seconds for e in events]
    assert seconds == sorted(seconds, reverse=True)


def test_a_seed_out_of_the_race_is_costed_but_never_the_best():
    problem = Problem()
    costs = evaluator(problem, evaluations=0)  # limits do not hold for seeds
    assert costs.seed({"single": Decision(1, 1)}, in_race=[]) == {"single": problem.estimate(Decision(1, 1))}
    assert costs.best is None


def test_log_cost_orders_fitting_before_not_fitting_before_worse():
    limit = 10.0
    plans = [cost(1.0), cost(3.0), cost(2.0, False, 11), cost(2.0, False, 40), cost(2.0, False, 400)]
    costs = [log_cost(plan, limit) for plan in plans]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(0.0)
    assert costs[4] - costs[3] == pytest.approx(2.302585, abs=1e-6)


def test_what_comes_after_the_best_is_of_the_space():
    problem = Problem()
    costs = evaluator(problem)
    members = list(costs.space)[::7]
    fewer = Decision(1, 4, frozenset(sum(problem.pairs, ())))  # faster than all of them, but on half of the devices
    costs.seed({"fewer": fewer}, in_race=[])
    costs.estimate_many(members)
    taken = {d: (problem.estimate(d).step_seconds, problem.estimate(d).memory.total) for d in members}
    assert problem.estimate(fewer).step_seconds < min(taken.values())[0]
    best = costs.best.decision
    others = [seconds for d, (seconds, _) in taken.items() if (d.data, d.model) != (best.data, best.model)]
    assert taken[costs.runner_up()][0] == min(others)
    front = [decision for decision, _ in costs.front()]
    assert front[0] == best
    assert len(front) > 1
    for decision, (seconds, memory) in taken.items():
        better = [d for d in front if taken[d][0] <= seconds and taken[d][1] <= memory]
        assert better
        assert decision not in front or better == [decision]
