from __future__ import annotations

import numpy as np
import pytest

from tools.paired_blocks import Interval, measure, median_interval, verdict


def clock(seconds, rng, log=None, name=""):
    """A program that takes `seconds` a step, give or take 2 %."""

    def run(steps):
        if log is not None:
            log.append((name, steps))
        return steps * seconds * (1 + 0.02 * rng.normal())

    return run


def ratio_of(slowdown):
    rng = np.random.default_rng(0)
    programs = {"a": clock(1.0, rng), "again": clock(1.0, rng), "b": clock(slowdown, rng)}
    seconds = measure(programs, rounds=60, steps=10)
    return median_interval(seconds["b"] / seconds["a"]), median_interval(seconds["again"] / seconds["a"])


@pytest.mark.parametrize(("slowdown", "outcome"), [(1.0, "holds"), (1.02, "holds"), (1.1, "does not hold")])
def test_a_known_slowdown_is_judged(slowdown, outcome):
    measured, noise = ratio_of(slowdown)
    assert measured.low < slowdown < measured.high
    assert noise.low < 1 < noise.high
    assert verdict(measured, noise, limit=1.03, baseline=1.0) == outcome


def test_a_limit_below_the_noise_is_not_resolvable():
    measured, noise = ratio_of(1.0)
    assert verdict(measured, noise, limit=1.0 + noise.width / 2, baseline=1.0) == "not resolvable here"


def test_every_program_runs_once_a_round_in_changing_order():
    rng = np.random.default_rng(0)
    log: list[tuple[str, int]] = []
    seconds = measure({name: clock(1.0, rng, log, name) for name in "abc"}, rounds=20, steps=7)
    rounds = [tuple(name for name, _ in log[i : i + 3]) for i in range(0, len(log), 3)]
    assert {len(set(order)) for order in rounds} == {3}
    assert len(set(rounds)) > 3
    assert {steps for _, steps in log} == {7}
    np.testing.assert_allclose([values.mean() for values in seconds.values()], 1.0, atol=0.05)


def test_the_interval_shrinks_with_the_number_of_samples():
    samples = np.random.default_rng(0).normal(size=1000)
    few, many = median_interval(samples[:50]), median_interval(samples)
    assert many.width < few.width / 2
    assert Interval(1.0, 0.5, 2.0).width == 1.5
