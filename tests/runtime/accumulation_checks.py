"""Checks of gradient accumulation on eight devices; run by test_accumulation.py."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.plan.layout import Spec
from automap_launch.program.batch_analysis import State
from automap_launch.runtime import accumulation
from automap_launch.runtime.accumulation import AccumulatedStep
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh
from automap_launch.split.accumulate import accumulate
from automap_launch.split.step import read
from automap_launch.train_step import Argument
from tests import equality
from tests.runtime import captured_by_hand, device_checks
from tests.split.models import Model, clipped, flat_run, lm, mlp


def sharded(argument: Argument) -> Spec:
    """Batch over `data`; the MLP's inner layers in Megatron's way over `model`."""
    if argument.role == "batch":
        return ("data",)
    specs: dict[str, Spec] = {"0/w": (None, "model"), "0/b": ("model",), "1/w": ("model", None)}
    return next((spec for end, spec in specs.items() if argument.path.endswith(end)), ())


def build(model: Model, data: int, micro_batches: int, tensor: int = 1, storage: Any = sharded) -> tuple[Any, Any]:
    captured = model.capture()
    axes = {"data": data, "model": tensor}
    mesh = make_mesh(axes, jax.devices()[: data * tensor])
    batch = {i: State("batch", 0) for i, a in enumerate(captured.arguments) if a.role == "batch"}
    whole = read(captured.artifact, captured.arguments, captured.results, batch)
    parts = accumulate(whole.line, whole.origin, whole.analysis, data * micro_batches)
    step = AccumulatedStep(parts, captured.arguments, captured.results, micro_batches, mesh)
    layout = captured_by_hand.layout(captured, axes, storage, sharded)
    return captured, Executable(step, captured.arguments, captured.results, layout, mesh)


def train(model: Model, captured: Any, executable: Any, steps: int = 3) -> dict[str, np.ndarray]:
    state, metrics = model.init(), []
    for seed in range(steps):
        state, made = jax.tree.unflatten(captured.tree, executable(jax.tree.leaves((state, model.batch(seed)))))
        metrics.append(made)
    return flat_run(state, metrics)


def compare(model: Model, run: dict[str, np.ndarray], tolerance: float = equality.F32_TOLERANCE) -> Any:
    reference = model.run()
    return equality.compare(reference, run, reference, tolerance=tolerance, metrics=())


def check_data_and_tensor_parallel_with_metrics() -> None:
    model = mlp(layers=3)
    assert (report := compare(model, train(model, *build(model, 2, 2, tensor=2)))).equal, str(report)


def check_optimizer_state_stored_sharded() -> None:
    """Optimizer state and parameters stored over `data` as well (ZeRO)."""

    def stored(argument: Argument) -> Spec:
        if argument.path.endswith("w") and argument.shape[0] % 4 == 0:
            return ("data", *sharded(argument)[1:])
        return sharded(argument)

    model = mlp(layers=2)
    assert (report := compare(model, train(model, *build(model, 4, 2, storage=stored)))).equal, str(report)


def check_tied_weights_clipping_and_a_masked_mean() -> None:
    model = lm(layers=1, optimizer=clipped(), masked=True)
    assert (report := compare(model, train(model, *build(model, 8, 2)))).equal, str(report)


def check_scanned_and_rematerialised_layers() -> None:
    model = lm(layers=2, scan=True, remat=True)
    assert (report := compare(model, train(model, *build(model, 1, 4)))).equal, str(report)


def check_dropout_draws_the_same_bits() -> None:
    model = lm(layers=1, dropout=0.3)
    assert (report := compare(model, train(model, *build(model, 2, 4)))).equal, str(report)


def check_double_precision() -> None:
    with jax.enable_x64(True):
        model = mlp(layers=2, dtype=jnp.float64)
        report = compare(model, train(model, *build(model, 2, 4)), equality.F64_TOLERANCE)
    assert report.equal, str(report)


def check_gradients_are_reduced_over_devices_once_a_step() -> None:
    _, executable = build(mlp(layers=2), 4, 4)
    text = executable.lower().compile().as_text()
    bodies = re.findall(r"body=%?([\w.-]+)", text)
    assert bodies, "the micro-batches run in a loop"
    functions = dict(re.findall(r"^%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    assert "all-reduce" in text
    for body in bodies:
        assert "all-reduce" not in functions[body]


def check_activations_of_one_micro_batch_at_a_time() -> None:
    model = mlp(layers=8, width=64)
    rows = Model(model.init, model.step, lambda seed: mlp().batch(seed, rows=2048))
    memory = []
    for micro_batches in (1, 16):
        _, executable = build(rows, 1, micro_batches)
        memory.append(executable.lower().compile().memory_analysis().temp_size_in_bytes)
    assert memory[1] < memory[0] / 4, memory


def check_low_precision_gradients_are_added_up_in_float32() -> None:
    """256 + 15 ones: in bfloat16 each one would be lost, as its neighbours there are 2 apart."""

    def step(w: Any, x: Any) -> tuple[Any, Any]:
        gradient = jax.grad(lambda w: (x * w).astype(jnp.float32).sum())(w)
        return w + gradient, gradient.astype(jnp.float32)

    model = Model(lambda: jnp.zeros((4,), jnp.bfloat16), step, lambda _: _ones_and_256())
    _, executable = build(model, 1, 16)
    _, gradient = executable(jax.tree.leaves((model.init(), model.batch(0))))
    np.testing.assert_allclose(gradient, 271, atol=1)


def _ones_and_256() -> np.ndarray:
    x = np.ones((16, 4), jnp.bfloat16)
    x[0] = 256
    return x


def check_wrong_sums_are_noticed() -> None:
    """The comparison fails when the first micro-batch is dropped, and when gradients are off by a thousandth."""
    model = mlp(layers=2)
    original = accumulation.accumulate

    def dropped(total: Any, value: Any, reduction: Any) -> Any:
        return original(total, value * (jnp.abs(total).sum() > 0).astype(value.dtype), reduction)

    def scaled(total: Any, value: Any, reduction: Any) -> Any:
        return original(total, value * 1.001 if jnp.issubdtype(value.dtype, jnp.floating) else value, reduction)

    for wrong in (dropped, scaled):
        accumulation.accumulate = wrong
        try:
            report = compare(model, train(model, *build(model, 1, 4)))
        finally:
            accumulation.accumulate = original
        assert any("mu" in tensor.path for tensor in report.different), str(report)


def check_what_does_not_fit_is_refused() -> None:
    captured = mlp(layers=2).capture()
    batch = {i: State("batch", 0) for i, a in enumerate(captured.arguments) if a.role == "batch"}
    whole = read(captured.artifact, captured.arguments, captured.results, batch)
    parts = accumulate(whole.line, whole.origin, whole.analysis, 4)
    with pytest.raises(ValueError, match="into 4 pieces, which is not 3 micro-batches on 2"):
        AccumulatedStep(parts, captured.arguments, captured.results, 3, make_mesh({"data": 2}, jax.devices()[:2]))


if __name__ == "__main__":
    device_checks.main(globals())
