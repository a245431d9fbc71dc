from __future__ import annotations

import os
import sys

import pytest

from tests.recipes.runs import ROOT
from tools.paired_blocks import Interval


@pytest.fixture(scope="module")
def bench():
    """The tool, imported as when it runs: with its own folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        import bench_overhead

        yield bench_overhead
        del sys.modules["bench_overhead"], sys.modules["paired_blocks"]


def outcome(bench, step_seconds, ratio, noise, microseconds):
    around = Interval(1.0, 1.0 - noise / 2, 1.0 + noise / 2)
    seconds = Interval(*(m * 1e-6 for m in (microseconds, microseconds - 10, microseconds + 10)))
    case = bench.Case("case", (), 20, 10)
    measured = Interval(ratio, ratio - 0.005, ratio + 0.005)
    return bench.Outcome(case, step_seconds, measured, around, seconds, Interval(0.0, -5e-6, 5e-6))


def verdicts(bench, *args):
    return [line.split("  ")[-1].strip() for line in bench.table([outcome(bench, *args)]).splitlines()[1:]]


def test_each_quantity_is_judged_by_its_own_limit(bench):
    assert verdicts(bench, 0.05, 1.01, 0.01, 100) == ["holds", "holds"]
    assert verdicts(bench, 0.05, 1.05, 0.01, 400) == ["does not hold", "does not hold"]
    assert verdicts(bench, 0.05, 1.01, 0.05, 100) == ["not resolvable here", "holds"]


def test_a_step_below_20_ms_has_no_ratio(bench):
    assert verdicts(bench, 0.002, 1.2, 0.01, 100) == ["holds"]


def test_the_pipe_is_emptied(bench):
    with bench.drained_pipe() as descriptor:
        block = b"x" * 65536
        for _ in range(64):  # far more than a pipe holds: this would block for ever
            os.write(descriptor, block)
        os.close(descriptor)


def test_the_programs_thread_their_state_and_count_their_steps(bench):
    calls = []

    def step(params, opt_state, tokens):
        calls.append((params, opt_state, tokens))
        return params + 1, opt_state + 10, 0.0

    run = bench.repeated(step, (0, 0, "batch"), {})
    assert run(2) >= 0
    run(1)
    assert calls == [(0, 0, "batch"), (1, 10, "batch"), (2, 20, "batch")]
