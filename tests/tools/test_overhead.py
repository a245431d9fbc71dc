from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tools import bench_overhead, overhead
from tools.overhead import Case, Outcome, drained_pipe, outcome_of, table
from tools.paired_blocks import Interval

LIMIT = 1.03


def verdicts(step_seconds: float, ratio: float, noise: float, microseconds: float) -> list[str]:
    around = Interval(1.0, 1.0 - noise / 2, 1.0 + noise / 2)
    seconds = Interval(*(m * 1e-6 for m in (microseconds, microseconds - 10, microseconds + 10)))
    measured = Interval(ratio, ratio - 0.005, ratio + 0.005)
    outcome = Outcome(Case("case", (), 10), 20, step_seconds, measured, around, seconds, Interval(0.0, -5e-6, 5e-6))
    return [line.split("  ")[-1].strip() for line in table([outcome], LIMIT).splitlines()[1:]]


def test_each_quantity_is_judged_by_its_own_limit() -> None:
    assert verdicts(0.05, 1.01, 0.01, 100) == ["holds", "holds"]
    assert verdicts(0.05, 1.05, 0.01, 400) == ["does not hold", "does not hold"]
    assert verdicts(0.05, 1.01, 0.05, 100) == ["not resolvable here", "holds"]


def test_a_step_below_20_ms_has_no_ratio() -> None:
    assert verdicts(0.002, 1.2, 0.01, 100) == ["holds"]


def test_the_outcome_is_of_paired_blocks() -> None:
    seconds = {"plain": [1.0, 2.0, 4.0], "plain again": [1.0, 2.0, 4.0], "wrapped": [1.5, 3.0, 6.0]}
    outcome = outcome_of(Case("case", (), 10), seconds)
    assert outcome.ratio == Interval(1.5, 1.5, 1.5)
    assert outcome.noise_seconds == Interval(0.0, 0.0, 0.0)
    assert outcome.blocks == 3


def test_runs_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = []

    def run_case(bench: overhead.Bench, case: Case, rounds: int, seed: int) -> dict[str, list[float]]:
        seeds.append(seed)
        return {"plain": [0.05] * rounds, "plain again": [0.05] * rounds, "wrapped": [0.055] * rounds}

    def programs(*_: Any) -> dict[str, overhead.Program]:
        return {}

    monkeypatch.setattr(overhead, "run_case", run_case)
    monkeypatch.setattr("sys.argv", ["tool", "--case", "case", "--rounds", "10"])
    document = tmp_path / "overhead.md"
    cases = (Case("case", (), 10),)
    bench = overhead.Bench("tool", tmp_path, cases, programs, LIMIT, tmp_path / "kept.json", document, "# Header\n")
    overhead.main(bench, None)
    assert not document.exists()  # fewer than 200 steps
    overhead.main(bench, None)
    assert seeds == [0, 10]  # or each run would have the order of the one before
    assert "200" in document.read_text()
    assert "does not hold" in document.read_text()


def test_the_pipe_is_emptied() -> None:
    with drained_pipe() as descriptor:
        block = b"x" * 65536
        for _ in range(64):  # far more than a pipe holds: this would block for ever
            os.write(descriptor, block)
        os.close(descriptor)


def test_the_programs_thread_their_state_and_count_their_steps() -> None:
    calls = []

    def step(params: int, opt_state: int, tokens: str) -> tuple[int, int, float]:
        calls.append((params, opt_state, tokens))
        return params + 1, opt_state + 10, 0.0

    run = bench_overhead.repeated(step, (0, 0, "batch"), {})
    assert run(2) >= 0
    run(1)
    assert calls == [(0, 0, "batch"), (1, 10, "batch"), (2, 20, "batch")]
