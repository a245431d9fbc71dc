import numpy as np
import pytest

from automap_launch.plan.pins import Pins
from automap_launch.search.environment import DEAD_END_REWARD, Environment
from automap_launch.search.evaluator import Evaluator, log_cost
from automap_launch.search.features import FEATURES, GroupFacts
from automap_launch.search.space import Choice, Partial, PlanSpace
from tests.search.synthetic import Problem


def environment(problem: Problem, pins: Pins | None = None) -> Environment:
    return Environment(Evaluator(problem, PlanSpace.pinned(problem.program, pins or Pins(problem.devices))))


@pytest.mark.parametrize("memory_bytes", [10_000, 700, 10])
def test_the_rewards_of_an_episode_sum_to_the_drop_of_log_cost(memory_bytes):
    problem = Problem(memory_bytes=memory_bytes)
    rng = np.random.default_rng(0)
    starts = set()
    for _ in range(20):
        env = environment(problem)
        observation, total = env.reset(), 0.0
        while observation is not None:
            reward, observation = env.step(int(rng.choice(np.flatnonzero(observation.mask))))
            total += reward
        end = log_cost(problem.estimate(env.decision), problem.memory_limit)
        starts.add(round(total + end, 9))
        assert np.isfinite(total)
    assert len(starts) == 1


def test_the_first_feature_is_the_reward_of_the_action():
    env = environment(Problem())
    observation = env.reset()
    for action in (2, 0, 1, 0, 1):
        expected = observation.features[action, FEATURES.index("reward")]
        reward, observation = env.step(action)
        assert reward == pytest.approx(expected, abs=1e-6)


def test_a_masked_action_is_refused():
    problem = Problem(devices=128)
    env = environment(problem)
    observation = env.reset()
    with pytest.raises(ValueError, match="masked"):
        env.step(int(np.flatnonzero(~observation.mask)[0]))


def test_a_state_whose_every_action_is_masked_is_a_dead_end_with_a_finite_penalty():
    class Trap(PlanSpace):
        def _choices(self, partial: Partial) -> tuple[Choice, ...]:
            choices = super()._choices(partial)
            return choices if partial.mesh is None else tuple(Choice(c.kind, c.result, False, c.group) for c in choices)

    problem = Problem()
    env = Environment(Evaluator(problem, Trap.pinned(problem.program, Pins(8))))
    expected = env.reset().features[1, 0]
    reward, observation = env.step(1)
    assert observation is None
    assert reward == pytest.approx(expected + DEAD_END_REWARD, abs=1e-6)


def test_nothing_to_decide_is_no_episode():
    assert environment(Problem(devices=1)).reset() is None


def test_features_do_not_depend_on_the_number_of_groups_or_devices():
    shapes = {
        environment(Problem(pair_count=pairs, devices=devices)).reset().features.shape[1]
        for pairs, devices in [(2, 2), (4, 8), (8, 64)]
    }
    assert shapes == {len(FEATURES)}


def test_features_are_finite_and_of_the_order_of_one():
    env = environment(Problem(memory_bytes=700, devices=64))
    rng = np.random.default_rng(1)
    for _ in range(20):
        observation = env.reset()
        while observation is not None:
            assert np.isfinite(observation.features).all()
            assert np.abs(observation.features).max() <= 8
            _, observation = env.step(int(rng.choice(np.flatnonzero(observation.mask))))


def test_features_are_the_same_for_a_program_and_cluster_ten_times_larger():
    class Tenfold(Problem):
        def estimate(self, decision):
            cost = super().estimate(decision)
            memory = type(cost.memory)(*(10 * getattr(cost.memory, n) for n in vars(cost.memory)))
            return type(cost)(10 * cost.compute, 10 * cost.communication, memory, memory.total <= self.memory_limit)

    large = Tenfold()
    large.memory_limit *= 10
    one, ten = environment(Problem()).reset(), environment(large).reset()
    np.testing.assert_allclose(one.features, ten.features, atol=1e-5)


def test_group_facts_know_which_groups_meet():
    problem = Problem()
    facts = GroupFacts(PlanSpace.pinned(problem.program, Pins(8)))
    place = facts.place
    assert facts.bytes.sum() == pytest.approx(1)
    assert facts.flops.sum() == pytest.approx(1)
    a, b = problem.pairs[3]  # no lure meets it
    assert facts.near[place[a], place[b]] == pytest.approx(1)
    assert facts.near[place[problem.burdens[0]]].sum() == 0
