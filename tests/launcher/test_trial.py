"""Plans that are tried on the devices before training: which one trains, and that nothing of the trial is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from automap_launch.errors import PlanError
from automap_launch.launcher.spec import Rival
from automap_launch.launcher.trial import TrialRunner
from automap_launch.plan.execution import Execution
from automap_launch.plan.layout import Layout
from automap_launch.train_step import Argument, Result
from tests.launcher.test_worker import assert_ended_well, assert_same_numbers, script_in
from tests.launcher.workers import prepare, run_plainly, run_workers

ARGUMENTS = (Argument("state/w", (4,), "float32", "state", donated=True), Argument("x", (4,), "float32", "batch"))
RESULTS = (Result("0/w", (4,), "float32", replaces=0),)


@dataclass
class Adding:
    """Adds the batch to its state, which it donates, and takes its time."""

    seconds: float
    arguments: Sequence[Argument] = ARGUMENTS
    results: Sequence[Result] = RESULTS
    began_with: list[float] = field(default_factory=list)
    add: Callable[..., Any] = field(default_factory=lambda: jax.jit(jnp.add, donate_argnums=0))

    def place(self, leaves: Sequence[Any]) -> list[Any]:
        return list(leaves)

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        self.began_with.append(float(leaves[0][0]))
        time.sleep(self.seconds)
        return [self.add(*leaves)]


@dataclass
class Outcome:
    seconds: dict[str, float | None] = field(default_factory=dict)
    chosen: str = ""

    def __call__(self, seconds: Any, chosen: str) -> None:
        self.seconds, self.chosen = dict(seconds), chosen


def test_the_fastest_trains_from_the_state_as_it_was() -> None:
    runners = {"plan": Adding(0.05), "runner_up": Adding(0.0), "data_parallel": Adding(0.05)}
    outcome = Outcome()
    trial = TrialRunner(list(runners), runners.__getitem__, ARGUMENTS, RESULTS, outcome)
    leaves = [jnp.zeros(4), jnp.ones(4)]
    trial.decide(leaves)
    assert outcome.chosen == "runner_up"
    assert list(outcome.seconds) == ["plan", "runner_up", "data_parallel"]
    assert all(runner.began_with == [0.0, 1.0, 2.0, 3.0] for runner in runners.values())

    (state,) = trial(leaves)
    assert state.tolist() == [1.0] * 4
    assert runners["runner_up"].began_with[-1] == 0.0
    assert leaves[0].is_deleted()  # by the real step, whose argument the script gave away


def test_a_plan_that_cannot_be_run_is_passed_over() -> None:
    def build(name: str) -> Adding:
        if name == "plan":
            raise PlanError("the step cannot be cut")
        return Adding(0.0)

    outcome = Outcome()
    TrialRunner(["plan", "data_parallel"], build, ARGUMENTS, RESULTS, outcome).decide([jnp.zeros(4), jnp.ones(4)])
    assert outcome.chosen == "data_parallel"
    assert outcome.seconds["plan"] is None


def test_the_reason_is_told_when_none_can_be_run() -> None:
    def build(name: str) -> Adding:
        raise PlanError("the step cannot be cut")

    trial = TrialRunner(["plan"], build, ARGUMENTS, RESULTS, Outcome())
    with pytest.raises(PlanError, match="cannot be cut"):
        trial.decide([jnp.zeros(4), jnp.ones(4)])


@pytest.mark.slow
def test_state_that_is_created_in_place_is_so_after_a_trial_too(tmp_path: Path) -> None:
    script = script_in(tmp_path / "work", "large_state.py")
    expected = run_plainly(script)
    run_dir = tmp_path / "run"
    prepare(
        script,
        run_dir,
        step="train_step",
        carried={"0": "state"},
        mesh={"data": 4, "model": 2},
        compute={"w1": [None, "model"], "w2": ["model", None]},
        storage={"w1": ["data", "model"], "w2": ["model", "data"]},
    )
    layout = Layout.load(run_dir / "layout.json")
    Layout(layout.mesh, layout.compute, layout.compute, layout.results).save(run_dir / "rival.json")
    worked = run_workers(
        script,
        run_dir,
        2,
        4,
        frontend={"materialize_limit": "64KiB"},
        rivals=[Rival("runner_up", str(run_dir / "rival.json"), Execution(1, 2))],
    )
    assert_ended_well(worked)
    for output in worked.outputs:
        assert_same_numbers(output, expected)
    (trial,) = [event for event in worked.events if event["event"] == "trial"]
    assert min(trial["seconds"], key=trial["seconds"].get) == trial["chosen"]
    assert set(trial["seconds"]) == {"plan", "runner_up"}
