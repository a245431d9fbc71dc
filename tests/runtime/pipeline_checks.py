"""Checks of pipelines on eight devices; run by test_pipeline.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.plan.execution import Execution
from automap_launch.plan.layout import Spec
from automap_launch.runtime import pipeline_parts
from automap_launch.runtime.build import build_executable
from automap_launch.runtime.pipeline import PipelineExecutable
from automap_launch.train_step import Argument
from tests import equality
from tests.runtime import captured_by_hand, device_checks
from tests.runtime.accumulation_checks import compare, sharded, train
from tests.split.models import Model, clipped, lm, mlp


def build(
    model: Model,
    stages: int,
    data: int,
    micro_batches: int,
    *,
    tensor: int = 1,
    schedule: str = "1f1b",
    donated: bool = False,
    storage: Any = sharded,
) -> tuple[Any, Any]:
    captured = model.capture(donated)
    width = data * tensor
    executable = build_executable(
        captured_by_hand.step_of(captured),
        captured_by_hand.layout(captured, {"data": data, "model": tensor}, storage, sharded),
        Execution(stages, micro_batches, schedule),
        devices=jax.devices()[: stages * width],
    )
    return captured, executable


def check_four_stages_of_two_replicas_with_metrics() -> None:
    """Metrics are sums, extrema, integers and values by example."""
    model = mlp()
    captured, executable = build(model, 4, 2, 4, donated=True)
    assert (report := compare(model, train(model, captured, executable))).equal, str(report)
    assert sum(executable.pipeline.shares) == pytest.approx(1)
    assert set(executable.pipeline.owner.values()) == {0, 1, 2, 3}


def check_stages_replicas_and_tensor_parallelism() -> None:
    model = mlp()
    captured, executable = build(model, 2, 2, 2, tensor=2)
    assert (report := compare(model, train(model, captured, executable))).equal, str(report)
    placed = executable.place(captured.leaves)
    by_path = {a.path: leaf for a, leaf in zip(captured.arguments, placed, strict=True)}
    inner = by_path["0/params/0/w"]
    assert inner.sharding.spec == jax.P(None, "model")
    assert inner.sharding.device_set == set(jax.devices()[:4])


def check_tied_weights_clipping_over_stages_and_a_masked_mean() -> None:
    model = lm(layers=2, optimizer=clipped(), masked=True)
    assert (report := compare(model, train(model, *build(model, 2, 4, 2, schedule="gpipe")))).equal, str(report)


def check_dropout_draws_the_same_bits_on_every_stage() -> None:
    model = lm(layers=2, dropout=0.3)
    assert (report := compare(model, train(model, *build(model, 2, 2, 4)))).equal, str(report)


def check_scanned_and_rematerialised_layers() -> None:
    model = lm(layers=2, scan=True, remat=True)
    assert (report := compare(model, train(model, *build(model, 2, 1, 4)))).equal, str(report)


def check_backward_in_two_halves_in_double_precision() -> None:
    with jax.enable_x64(True):
        model = mlp(dtype=jnp.float64)
        run = train(model, *build(model, 4, 2, 4, schedule="zero_bubble"))
        report = compare(model, run, equality.F64_TOLERANCE)
    assert report.equal, str(report)


def check_optimizer_state_stored_sharded() -> None:
    def stored(argument: Argument) -> Spec:
        if argument.path.endswith("w") and "opt" in argument.path and argument.shape[0] % 4 == 0:
            return ("data", *sharded(argument)[1:])
        return sharded(argument)

    model = mlp(layers=2)
    captured, executable = build(model, 2, 4, 2, storage=stored)
    assert (report := compare(model, train(model, captured, executable))).equal, str(report)


def check_a_value_that_is_not_finite_is_an_error_where_jax_looks_for_one() -> None:
    model = mlp(layers=2)
    captured, executable = build(model, 2, 1, 2)
    leaves = [
        leaf * np.nan if a.path.endswith("0/w") else leaf
        for a, leaf in zip(captured.arguments, captured.leaves, strict=True)
    ]
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="encountered in the train step"):
        executable(leaves)


def check_old_state_may_be_read_when_it_was_not_donated() -> None:
    model = mlp(layers=2)
    for donated in (False, True):
        captured, executable = build(model, 2, 1, 2, donated=donated)
        placed = executable.place(captured.leaves)
        results = executable(placed)
        state = [leaf for leaf, a in zip(placed, captured.arguments, strict=True) if a.role == "state"]
        assert donated == any(leaf.is_deleted() for leaf in state)
        again = executable.place([*results[: len(state)], *captured.leaves[len(state) :]])
        assert all(a is b for a, b in zip(again, results[: len(state)], strict=False))


def check_equal_stages_are_compiled_once() -> None:
    """One inner stage more is some five functions more, but not more than one program: where the stages are cut."""
    compilations, loaded = [], []
    for stages in (3, 4):
        model = mlp(layers=2 * stages, inputs=32, classes=32, width=32)
        captured, executable = build(model, stages, 1, 4)
        assert (report := compare(model, train(model, captured, executable))).equal, str(report)
        compilations.append(executable.compile_once.compilations)
        loaded.append(executable.compile_once.loaded)
    assert compilations[1] <= compilations[0] + 1, compilations
    assert loaded[1] >= loaded[0] + 4, loaded


def check_gradients_are_reduced_over_devices_once_a_step() -> None:
    """What runs for each micro-batch has no collective over `data`; the sums meet after the last."""
    captured, executable = build(mlp(layers=4), 2, 4, 4)
    executable(captured.leaves)
    texts: dict[str, list[str]] = {"micro": [], "reduce": []}
    for stage in executable._stages.values():
        texts["micro"] += [part.function._compiled.as_text() for part in stage._micro.values()]
        texts["reduce"].append(stage._reduce._compiled.as_text())
    assert len(texts["micro"]) == 3
    assert all("all-reduce" not in text and "all-gather" not in text for text in texts["micro"])
    assert all("all-reduce" in text for text in texts["reduce"])


def check_low_precision_gradients_are_added_up_in_float32() -> None:
    """256 + 15 ones in two stages: in bfloat16 each one would be lost, as its neighbours there are 2 apart."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made = x * weights[0] * weights[1]
            return (made * made / 2).astype(jnp.float32).sum()

        gradients = jax.grad(loss)(weights)
        new = jax.tree.map(lambda w, g: w + g, weights, gradients)
        return new, gradients[1].astype(jnp.float32)

    x = np.ones((16, 4), jnp.bfloat16)
    x[0] = 16
    model = Model(lambda: [jnp.ones((4,), jnp.bfloat16)] * 2, step, lambda _: x)
    captured, executable = build(model, 2, 1, 16, storage=lambda argument: ())
    np.testing.assert_allclose(executable(captured.leaves)[-1], 271, atol=1)


def check_wrong_sums_are_noticed() -> None:
    """The comparison fails when a micro-batch is dropped, and when gradients are off by a thousandth."""
    model = mlp(layers=2)
    original = pipeline_parts.accumulate

    def dropped(total: Any, value: Any, reduction: Any) -> Any:
        return original(total, value * (jnp.abs(total).sum() > 0).astype(value.dtype), reduction)

    def scaled(total: Any, value: Any, reduction: Any) -> Any:
        return original(total, value * 1.001 if jnp.issubdtype(value.dtype, jnp.floating) else value, reduction)

    for wrong in (dropped, scaled):
        pipeline_parts.accumulate = wrong
        try:
            report = compare(model, train(model, *build(model, 2, 1, 2)))
        finally:
            pipeline_parts.accumulate = original
        assert any("mu" in tensor.path for tensor in report.different), str(report)


def check_what_does_not_fit_is_refused() -> None:
    captured, executable = build(mlp(layers=2), 2, 2, 2)
    options: Any = {"schedule": "1f1b", "micro_batches": 2, "devices": [jax.devices()[:2], jax.devices()[2:4]]}
    make = lambda **changed: PipelineExecutable(  # noqa: E731
        executable.pipeline, captured.arguments, captured.results, executable.layout, **{**options, **changed}
    )
    with pytest.raises(ValueError, match="not 3 micro-batches on 2 replicas"):
        make(micro_batches=3)
    with pytest.raises(ValueError, match="2 stages, got devices for 1"):
        make(devices=[jax.devices()[:2]])
    with pytest.raises(ValueError, match="arguments, got 1"):
        make()([np.ones(3)])


if __name__ == "__main__":
    device_checks.main(globals())
