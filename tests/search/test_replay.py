import numpy as np
import pytest

from automap_launch.search.environment import Observation
from automap_launch.search.replay import PrioritisedReplay, Step, SumTree, transitions_of


def observation(number: float = 0.0) -> Observation:
    return Observation(np.full((2, 3), number, np.float32), np.ones(2, bool))


def episode(*rewards: float) -> list[Step]:
    return [Step(observation(i), i % 2, reward) for i, reward in enumerate(rewards)]


def test_n_step_returns_by_hand():
    steps = episode(1.0, 2.0, 4.0, 8.0)
    transitions = transitions_of(steps, n=2, discount=0.5)
    assert [t.reward for t in transitions] == [1 + 0.5 * 2, 2 + 0.5 * 4, 4 + 0.5 * 8, 8]
    assert [t.outcome for t in transitions] == [1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 8)), 2 + 0.5 * (4 + 4), 8, 8]
    assert [t.following for t in transitions] == [steps[2].state, steps[3].state, None, None]
    assert [t.discount for t in transitions[:2]] == [0.25, 0.25]
    assert [t.action for t in transitions] == [0, 1, 0, 1]


def test_an_episode_shorter_than_n_has_no_bootstrap():
    (only,) = transitions_of(episode(3.0), n=5, discount=1.0)
    assert (only.reward, only.following) == (3.0, None)


def test_sum_tree_finds_the_leaf_of_each_position():
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 0.5, 0.5]))
    assert tree.total == 4.0
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99, 3.2, 3.5, 3.999])).tolist() == [0, 0, 2, 2, 3, 4, 4]
    tree.set(np.array([2]), np.array([0.0]))
    assert tree.total == 2.0
    assert tree.find(np.array([1.2])).tolist() == [3]


def test_sampling_is_in_proportion_to_priority_and_weights_undo_it():
    replay = PrioritisedReplay(8, exponent=1.0, importance_exponent=1.0)
    replay.add(transitions_of(episode(0, 0, 0, 0), 1, 1.0))
    replay.update(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0], np.float32))
    rng = np.random.default_rng(0)
    counts, total = np.zeros(4), np.zeros(4)
    for _ in range(2000):
        indices, _, weights = replay.sample(10, rng)
        np.add.at(counts, indices, 1)
        np.add.at(total, indices, weights)
    assert counts / counts.sum() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    # With full correction every transition weighs the same in the mean gradient.
    assert total / total.mean() == pytest.approx(np.ones(4), rel=0.05)


def test_without_an_exponent_sampling_is_uniform():
    replay = PrioritisedReplay(4, exponent=0.0, importance_exponent=0.4)
    replay.add(transitions_of(episode(0, 0, 0, 0), 1, 1.0))
    replay.update(np.arange(4), np.array([0.0, 0.0, 0.0, 100.0], np.float32))
    indices, _, weights = replay.sample(4000, np.random.default_rng(0))
    assert np.bincount(indices) / 4000 == pytest.approx([0.25] * 4, abs=0.01)
    assert weights == pytest.approx(np.ones(4000))


def test_new_transitions_replace_the_oldest_and_come_first():
    replay = PrioritisedReplay(4, exponent=1.0, importance_exponent=0.4)
    replay.add(transitions_of(episode(0, 1, 2, 3, 4, 5), 1, 1.0))
    assert sorted(t.reward for t in replay.transitions) == [2, 3, 4, 5]
    replay.update(np.arange(4), np.array([9.0, 0.0, 0.0, 0.0], np.float32))
    replay.add(transitions_of(episode(7.0), 1, 1.0))
    _, sampled, _ = replay.sample(100, np.random.default_rng(0))
    rewards = [t.reward for t in sampled]
    assert rewards.count(7.0) == pytest.approx(50, abs=2)
