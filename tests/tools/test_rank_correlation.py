"""Which plans are measured, and how their order is judged."""

from __future__ import annotations

import numpy as np
import pytest

from automap_launch.plan.sharding import why_invalid
from tests.plan.programs import two_layers
from tools.rank_correlation import SAME, plans, rank_of, ratios, tied_groups


def test_every_factorisation_and_storage_level_is_among_the_plans():
    program = two_layers()
    found = plans(program)
    assert {(d.data, d.model) for d in found.values()} == {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert {d.storage for d in found.values() if d.model == 4} == {"none", "optimizer", "state"}
    assert len(set(found.values())) == len(found) > 15
    assert all(why_invalid(program, d) is None for d in found.values())


def test_the_same_order_is_perfect_and_the_reverse_is_the_opposite():
    measured = np.array([1.0, 2.0, 3.0, 4.0])
    right, wrong = rank_of(measured**2, measured, 0.01), rank_of(-measured, measured, 0.01)
    assert (right.spearman, right.kendall, right.agree, right.pairs) == (pytest.approx(1), 1, 6, 6)
    assert (wrong.spearman, wrong.kendall, wrong.agree) == (pytest.approx(-1), -1, 0)


def test_pairs_closer_than_the_noise_count_for_nothing():
    measured, swapped = np.array([1.0, 1.01, 2.0]), np.array([2.0, 1.0, 3.0])
    assert rank_of(swapped, measured, 0.02).kendall == 1
    assert rank_of(swapped, measured, 0.02).spearman == pytest.approx(np.sqrt(3) / 2)
    assert rank_of(swapped, measured, 0.001).spearman == pytest.approx(0.5)
    assert rank_of(swapped, measured, 0.001).kendall == pytest.approx(1 / 3)
    assert list(tied_groups(np.array([1.0, 3.0, 1.01, 1.03]), 0.02)) == [0, 2, 0, 1]


def test_only_ratios_within_a_round_count():
    rounds = [{"a": 1.0 * s, "b": 2.0 * s, SAME: (1 + e) * s} for s, e in [(1, 0.1), (5, -0.1), (3, 0.0), (2, 0.05)]]
    measured, noise, reference = ratios(rounds, ["a", "b"])
    assert measured == pytest.approx([1.0, 2.0])
    assert 0.02 < noise < 0.2
    assert reference == pytest.approx(2.5)
