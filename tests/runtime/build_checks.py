"""Checks of `build_executable` on eight devices; run by test_build.py."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from automap_launch.errors import PlanError
from automap_launch.runtime.build import Execution, build_executable, divide
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.pipeline import PipelineExecutable
from automap_launch.train_step import StepIdentity, TrainStep
from tests.runtime import captured_by_hand, device_checks
from tests.runtime.accumulation_checks import compare, sharded, train
from tests.split.models import Model, mlp


def step_of(captured: Any) -> TrainStep:
    return TrainStep(
        identity=StepIdentity("step", None),
        frontend="jax",
        arguments=captured.arguments,
        results=captured.results,
        modules={"cpu": captured.artifact},
        fingerprint="",
    )


def build(model: Model, axes: dict[str, int], execution: Execution) -> tuple[Any, Any]:
    captured = model.capture()
    layout = captured_by_hand.layout(captured, axes, sharded)
    return captured, build_executable(step_of(captured), layout, execution)


def check_every_way_to_run_equals_the_plain_step() -> None:
    model = mlp(layers=2)
    cases: list[tuple[dict[str, int], Execution, type]] = [
        ({"data": 8, "model": 1}, Execution(), Executable),
        ({"data": 4, "model": 2}, Execution(micro_batches=4), Executable),
        ({"data": 2, "model": 2}, Execution(stages=2, micro_batches=2, schedule="1f1b"), PipelineExecutable),
    ]
    for axes, execution, kind in cases:
        captured, executable = build(model, axes, execution)
        assert isinstance(executable, kind)
        report = compare(model, train(model, captured, executable))
        assert report.equal, f"{execution}: {report}"


def check_a_batch_that_does_not_divide_is_cut_otherwise() -> None:
    """A last batch of 6 rows on 4 replicas with 4 micro-batches: 3 micro-batches, each on all replicas."""
    assert divide(16, 4, 4) == (4, 4)
    assert divide(8, 4, 4) == (2, 4)
    assert divide(6, 4, 4) == (3, 1)
    assert divide(1, 4, 4) == (1, 1)
    model = mlp(layers=2)
    last = Model(model.init, model.step, lambda seed: model.batch(seed, 6))  # type: ignore[call-arg]
    for axes, execution in (
        ({"data": 4, "model": 2}, Execution(micro_batches=4)),
        ({"data": 4, "model": 1}, Execution(stages=2, micro_batches=4)),
    ):
        captured = last.capture()
        whole = captured_by_hand.layout(captured, axes, lambda a: sharded(a) if a.role == "state" else ())
        executable = build_executable(step_of(captured), whole, execution)
        report = compare(last, train(last, captured, executable))
        assert report.equal, f"{execution}: {report}"


def check_what_cannot_be_cut_is_refused() -> None:
    """Normalised over the batch; and a step that calls back into Python."""

    def step(w: Any, x: Any) -> tuple[Any, Any]:
        def loss(w: Any) -> Any:
            y = jax.numpy.tanh(x @ w)
            return (((y - y.mean(0)) / (y.std(0) + 1)) ** 3).sum()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, value

    model = Model(lambda: jax.numpy.ones((4, 4)), step, lambda seed: np.ones((16, 4), "f"))
    with pytest.raises(PlanError, match="over the batch"):
        build(model, {"data": 2, "model": 1}, Execution(micro_batches=4))
    captured, _ = build(mlp(layers=2), {"data": 8, "model": 1}, Execution())
    layout = captured_by_hand.layout(captured, {"data": 2, "model": 1}, sharded)
    with pytest.raises(PlanError, match="calls back into Python"):
        build_executable(step_of(captured), layout, Execution(stages=4), traced=captured.flat)


if __name__ == "__main__":
    device_checks.main(globals())
