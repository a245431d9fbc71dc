from automap_launch.search.bandit import Bandit, arms_of, begun
from automap_launch.search.space import PlanSpace
from tests.search.test_oracle import tiny_models

ARMS = ((1, 1), (2, 1), (2, 4))


def test_every_arm_is_tried_once_before_any_is_tried_again():
    bandit = Bandit(ARMS, exploration=0.1)
    tried = []
    for _ in ARMS:
        arm = bandit.choose()
        tried.append(arm)
        bandit.saw(arm, cost=1.0)
    assert sorted(tried) == sorted(ARMS)


def test_the_best_arm_is_chosen_most_and_none_is_forgotten():
    bandit, visits = Bandit(ARMS, exploration=0.5), dict.fromkeys(ARMS, 0)
    cost = {(1, 1): 0.5, (2, 1): 0.0, (2, 4): 0.1}
    for _ in range(200):
        arm = bandit.choose()
        visits[arm] += 1
        bandit.saw(arm, cost[arm])
    assert visits[2, 1] > visits[2, 4] > visits[1, 1] > 1


def test_saw_tells_whether_it_is_the_arms_best():
    bandit = Bandit(ARMS, exploration=0.1)
    assert bandit.saw((1, 1), 2.0)
    assert not bandit.saw((1, 1), 2.0)
    assert bandit.saw((1, 1), 1.0)
    assert bandit.saw((2, 1), 3.0)


def test_an_episode_begins_with_its_arm_decided():
    _, space = next((m, s) for m, s in tiny_models(10) if len(arms_of(s)) > 3)
    for arm in arms_of(space):
        partial = begun(space, arm)
        assert (partial.stages, partial.micro_batches) == arm
        decision = space.complete(partial)
        assert (decision.stages, decision.micro_batches) == arm
        assert decision in space


def test_arms_are_those_of_the_space():
    for _, space in tiny_models(5):
        assert set(arms_of(PlanSpace(space.program, space.pins))) == {(d.stages, d.micro_batches) for d in space}
