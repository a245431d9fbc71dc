import contextlib
import dataclasses
import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from automap_launch.errors import NoPlanFitsError, PlanError
from automap_launch.plan.pins import Pins
from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig, SearchConfig
from automap_launch.search.dqn_searcher import DQNSearcher
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd
from automap_launch.search.search import SearchResult, search
from automap_launch.search.space import PlanSpace
from tests.search.synthetic import Problem

HIDDEN = {"pair_count": 6, "lure_count": 3, "burden_count": 5}  # 7 million plans
EVALUATIONS = 400
PATIENT = AgentConfig(epsilon_episodes=30, round_episodes=60)


def run(problem: Problem, pins: Pins | None = None, events: dict | None = None, **config) -> SearchResult:
    return search(
        problem,
        SearchConfig(**{"method": "dqn", "max_evaluations": 80, "pretrained": False, "agent": PATIENT, **config}),
        pins or Pins(problem.devices),
        baselines=problem.baselines(),
        **(events or {}),
    )


def gap(problem: Problem, step_seconds: float) -> float:
    return step_seconds / problem.optimum() - 1


def agent_alone(problem: Problem, agent: Agent, evaluations: int) -> float:
    """Step seconds of the best plan that an agent finds without baselines."""
    evaluator = Evaluator(
        problem, PlanSpace.pinned(problem.program, Pins(problem.devices)), Limits(evaluations=evaluations)
    )
    with contextlib.suppress(SearchEnd):
        DQNSearcher(agent, explore=False, hill_climbing=False).run(evaluator, lambda event: None)
    return evaluator.best.estimate.step_seconds


def test_the_made_up_problem_hides_its_optimum():
    for seed in range(3):
        problem = Problem(seed, pair_count=3)
        space = PlanSpace.pinned(problem.program, Pins(8))
        fastest = min(c.step_seconds for c in problem.estimate_many(list(space)) if c.fits)
        assert problem.optimum() == pytest.approx(fastest)
        baselines = [problem.estimate(d).step_seconds for d in problem.baselines().values()]
        assert gap(problem, min(baselines)) > 0.1


@pytest.mark.slow
def test_the_agent_beats_the_baselines_and_random_search_at_equal_evaluations():
    gaps: dict[str, list[float]] = {"heuristic": [], "random": [], "dqn": []}
    for seed, (method, found) in itertools.product(range(3), gaps.items()):
        problem = Problem(seed, **HIDDEN)
        result = run(problem, method=method, seed=seed, max_evaluations=EVALUATIONS)
        found.append(gap(problem, result.estimate.step_seconds))
    means = {method: np.mean(found) for method, found in gaps.items()}
    assert means["dqn"] < 0.6 * means["random"], gaps
    assert means["dqn"] < 0.4 * means["heuristic"], gaps


@pytest.mark.slow
def test_random_weights_in_the_agents_place_find_worse_plans():
    learnt, random = [], []
    for seed in range(3):
        problem = Problem(seed, **HIDDEN)
        learnt.append(gap(problem, agent_alone(problem, Agent(PATIENT, seed), EVALUATIONS)))
        scrambled = Agent(replace(PATIENT, learning_starts=10**9), seed)
        generator = torch.Generator().manual_seed(seed)
        for parameter in scrambled.online.parameters():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
        random.append(gap(problem, agent_alone(problem, scrambled, EVALUATIONS)))
    assert np.mean(random) > np.mean(learnt) + 0.1, (learnt, random)


@pytest.mark.parametrize("method", ["heuristic", "random", "dqn"])
@pytest.mark.parametrize("memory_bytes", [10_000, 700])
def test_the_result_is_never_worse_than_a_baseline(method, memory_bytes):
    for seed in range(3):
        problem = Problem(seed, pair_count=2, memory_bytes=memory_bytes)
        result = run(problem, method=method, max_evaluations=30)
        in_race = [b for name, b in result.baselines.items() if name != "single" and b is not None and b.fits]
        assert in_race
        assert all(result.estimate.step_seconds <= b.step_seconds for b in in_race)
        assert result.estimate.fits
        assert result.estimate == problem.estimate(result.decision)


def test_all_baselines_are_evaluated_even_beyond_the_limits():
    result = run(Problem(), max_evaluations=1)
    assert set(result.baselines) == {"single", "data_parallel", "zero_data_parallel", "megatron"}
    assert None not in result.baselines.values()
    assert (result.found_by, result.evaluations, result.ended) == ("megatron", 4, "evaluations")
    assert result.agent is None


def test_a_baseline_that_does_not_exist_is_none():
    result = run(Problem(devices=1), method="heuristic")
    assert result.baselines["megatron"] is None
    assert result.found_by == "single"


def test_the_same_seed_gives_the_same_search_and_another_seed_another():
    def trace(seed: int) -> tuple[object, ...]:
        problem, episodes = Problem(1), []
        result = run(problem, seed=seed, max_evaluations=330, events={"on_episode": episodes.append})
        plans = [(e.decision, e.evaluations, e.episode) for e in result.curve]
        return plans, [(e.episode, e.loss, e.epsilon, e.evaluations) for e in episodes]

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)


def test_the_sequence_of_plans_does_not_depend_on_the_budget():
    def plans(**config) -> list[object]:
        calls = 0

        def stop() -> bool:
            nonlocal calls
            calls += 1
            return calls > 60

        result = run(Problem(1), max_evaluations=None, events={"stop": stop}, **config)
        assert result.ended == "stopped"
        return [(e.decision, e.evaluations) for e in result.curve]

    assert plans(budget="1h") == plans(budget="3h", patience=None)


@pytest.mark.parametrize("method", ["heuristic", "random", "dqn"])
def test_pins_are_kept(method):
    problem = Problem(pair_count=2)
    pins = Pins(8, data=2, storage="optimizer", groups={problem.pairs[0][0]: "model", problem.lures[0][0]: None})
    costed = []
    problem.estimate_many = lambda decisions: costed.extend(decisions) or [problem.estimate(d) for d in decisions]
    agent = AgentConfig(epsilon_episodes=3, round_episodes=3)
    result = run(problem, pins, method=method, max_evaluations=None, agent=agent)
    assert pins.allows(result.decision)
    assert (result.decision.data, result.decision.model) == (2, 4)
    assert all(pins.allows(d) for d in costed if d not in problem.baselines().values())


def test_the_single_device_is_for_comparison_only():
    problem = Problem()
    problem.estimate = lambda d, own=problem.estimate: dataclasses.replace(
        own(d), compute=1e-9 if d.devices == 1 else 1
    )
    result = run(problem)
    assert result.baselines["single"].step_seconds < result.estimate.step_seconds
    assert result.decision.devices == 8


def test_small_spaces_are_searched_to_the_end_and_the_best_is_proven():
    problem = Problem(2, pair_count=2, lure_count=1, burden_count=1)
    agent = AgentConfig(epsilon_episodes=3, round_episodes=3)
    result = run(problem, method="portfolio", max_evaluations=None, agent=agent)
    assert result.proven_optimal
    assert result.ended in ("proven", "exhausted")
    assert (result.gap, result.lower_bound_step_seconds) == (0.0, result.estimate.step_seconds)
    assert result.estimate.step_seconds == pytest.approx(problem.optimum())
    assert result.agent.gap >= 0
    assert result.episodes >= 6


def test_the_agent_has_its_episodes_where_the_seeds_have_been_through_the_whole_space():
    problem = Problem(pair_count=1, lure_count=0, burden_count=0)
    agent = AgentConfig(epsilon_episodes=3, round_episodes=3)
    result = run(problem, Pins(8, data=4, storage="none"), method="portfolio", max_evaluations=None, agent=agent)
    assert result.space_size < 10
    assert (result.ended, result.proven_optimal) == ("exhausted", True)
    assert result.episodes >= 6
    assert result.agent.gap == 0.0


@pytest.mark.parametrize(("patience", "ended"), [("100ms", "patience"), (None, "proven")])
def test_an_oracle_that_gets_no_further_ends_by_patience(patience, ended, monkeypatch):
    class Slow:
        name = "oracle"

        def __init__(self, model):
            pass

        def run(self, evaluator, on_episode):
            for _ in range(20):
                time.sleep(0.01)
                evaluator.check_limits()
            evaluator.raise_lower_bound(math.inf)

    monkeypatch.setattr("automap_launch.search.search.Oracle", Slow)
    result = run(Problem(**HIDDEN), method="exact", max_evaluations=None, patience=patience)
    assert result.ended == ended
    assert result.proven_optimal == (ended == "proven")


def test_the_search_keeps_to_its_budget():
    result = run(Problem(**HIDDEN), max_evaluations=None, budget="500ms", patience=None)
    assert result.ended == "budget"
    assert 0.5 <= result.seconds < 2.5


def test_patience_ends_a_search_that_no_longer_improves():
    result = run(Problem(**HIDDEN), method="heuristic", max_evaluations=None)
    assert result.ended == "finished"
    result = run(Problem(**HIDDEN), max_evaluations=None, patience="300ms")
    assert result.ended == "patience"


def test_stop_keeps_the_best_so_far():
    problem, events = Problem(**HIDDEN), []
    asked = iter([False] * 3)
    result = run(problem, events={"stop": lambda: next(asked, True), "on_improvement": events.append})
    assert result.ended == "stopped"
    assert result.decision == events[-1].decision
    assert list(result.curve) == events


def test_every_improvement_and_episode_is_told():
    improvements, episodes = [], []
    events = {"on_improvement": improvements.append, "on_episode": episodes.append}
    result = run(Problem(), max_evaluations=600, events=events)
    seconds = [e.estimate.step_seconds for e in improvements]
    assert seconds == sorted(set(seconds), reverse=True)
    assert result.estimate.step_seconds == seconds[-1]
    assert result.found_by == improvements[-1].found_by
    assert [e.episode for e in episodes] == list(range(1, len(episodes) + 1))
    assert result.episodes in (len(episodes), len(episodes) + 1)  # the last one may be broken off
    assert episodes[-1].best_step_seconds == seconds[-1]
    assert any(e.loss is not None for e in episodes)


@pytest.mark.parametrize("method", ["heuristic", "random", "dqn"])
def test_when_nothing_fits_the_message_says_what_is_missing(method):
    problem = Problem(memory_bytes=100, pair_count=1, lure_count=0, burden_count=0)
    with pytest.raises(NoPlanFitsError) as error:
        run(problem, method=method, max_evaluations=None)
    needs = [problem.estimate(d).memory.total for d in PlanSpace.pinned(problem.program, Pins(8))]
    if method != "heuristic":
        assert f"needs {min(needs)} bytes" in error.value.message
    # Random search has tried every plan of this small space.
    assert ("none of all" in error.value.message) == (method == "random")
    assert "may use 90 bytes" in error.value.message
    assert error.value.hint


def test_the_agent_finds_a_plan_where_no_baseline_fits():
    problem = Problem(memory_bytes=500)
    baselines = [problem.estimate(d) for d in problem.baselines().values()]
    assert not any(b.fits for b in baselines)
    result = run(problem, max_evaluations=200)
    assert result.estimate.fits
    assert result.found_by in ("simple", "dqn", "hill_climbing")
    # A first plan is there before all others are priced.
    assert result.curve[0].found_by == "heuristic"
    assert result.curve[0].evaluations <= len(baselines) + 8


def test_there_is_a_plan_even_when_stopped_at_once_and_pins_rule_the_baselines_out():
    problem = Problem()
    result = run(problem, Pins(8, data=2), events={"stop": lambda: True})
    assert (result.decision.data, result.decision.model) == (2, 4)
    assert (result.found_by, result.ended, result.evaluations) == ("heuristic", "stopped", 5)


def test_a_space_without_plans_is_an_error_about_pins():
    problem = Problem()
    with pytest.raises(PlanError, match=r"keeps to search\.pin"):
        run(problem, Pins(8, data=8, groups={1: "model"}))
