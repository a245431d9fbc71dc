"""Checks of `Substitute` on eight devices; run by test_substitute.py in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.frontends import jit_hook
from automap_launch.frontends.lowering import LoweredStep, lower_step
from automap_launch.frontends.substitute import StepReport, Substitute
from automap_launch.plan.layout import Layout
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh
from automap_launch.runtime.signatures import fit, same_state
from automap_launch.train_step import Argument, Result, Runner, TrainStep
from tests.runtime import device_checks

MESH_AXES = {"data": 8}


class Recorder:
    """Counts what a substitute does."""

    def __init__(self) -> None:
        self.first = 0
        self.lowerings: list[LoweredStep] = []
        self.reports: list[StepReport] = []

    def first_step(self, runner: Runner, leaves: Sequence[Any]) -> None:
        assert len(runner.arguments) == len(leaves)
        self.first += 1

    def lowered(self, lowered: LoweredStep) -> None:
        self.lowerings.append(lowered)

    def stepped(self, report: StepReport) -> None:
        self.reports.append(report)


def define(**options: Any) -> Any:
    """The user's step, jitted while the hooks are in place."""

    def train_step(state: Any, batch: Any, *, scale: float = 1.0) -> Any:
        grads = (batch["x"] * batch["mask"][:, None]).mean(0) * scale
        return {"w": state["w"] - 0.1 * grads, "n": state["n"] + 1}, {"loss": (state["w"] * grads).sum(), "each": grads}

    return jax.jit(train_step, **{"static_argnames": ("scale",), **options})


def batch(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(rows)
    return {"x": rng.normal(size=(rows, 4)).astype(np.float32), "mask": np.ones(rows, np.float32)}


def state() -> dict[str, Any]:
    return {"w": jnp.ones(4), "n": jnp.asarray(0)}


def captured(function: Any, *args: Any) -> TrainStep:
    lowered = lower_step(function, args, {}, ["cpu"])
    places = {a.path: i for i, a in enumerate(lowered.arguments)}
    return TrainStep(
        identity=function.identity,
        frontend="jax",
        arguments=tuple(_role(a) for a in lowered.arguments),
        results=tuple(_replaced(r, places) for r in lowered.results),
        modules=lowered.modules,
        fingerprint=lowered.fingerprint,
    )


def _role(argument: Argument) -> Argument:
    role: Any = argument.path.split("/")[0]
    return Argument(argument.path, argument.shape, argument.dtype, role, argument.donated)


def _replaced(result: Result, places: dict[str, int]) -> Result:
    replaces = places["state" + result.path[1:]] if result.path.startswith("0/") else None
    return Result(result.path, result.shape, result.dtype, replaces)


def running(step: TrainStep) -> tuple[Recorder, Callable[[], None]]:
    """Hooks with a substitute for `step`, data parallel over eight devices; and what removes them."""
    specs = tuple(("data", *[None] * (len(a.shape) - 1)) if a.role == "batch" else () for a in step.arguments)
    layout = Layout(MESH_AXES, specs, specs, tuple(() for _ in step.results))
    mesh, recorder = make_mesh(MESH_AXES), Recorder()

    def build(function: bytes | Callable[..., Sequence[Any]], lowered: LoweredStep) -> Executable:
        fitted = fit(step, layout, lowered.arguments, lowered.results)
        return Executable(function, fitted.arguments, fitted.results, fitted.layout, mesh)

    substitute = Substitute(step, "cpu", accepts=lambda a: same_state(step, a), build=build, observer=recorder)
    return recorder, jit_hook.install(substitute)


def check_the_step_runs_sharded_and_returns_the_users_tree() -> None:
    step = captured(_plain(define), state(), batch(16))
    recorder, uninstall = running(step)
    function = define()
    after, metrics = function(state(), batch(16))
    again, _ = function(after, batch(16))
    uninstall()
    expected, expected_metrics = define()(state(), batch(16))
    assert after.keys() == expected.keys()
    assert metrics.keys() == expected_metrics.keys()
    np.testing.assert_allclose(after["w"], expected["w"], rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-5)
    assert int(again["n"]) == 2
    assert len(again["w"].sharding.device_set) == 8
    assert (recorder.first, len(recorder.lowerings), len(recorder.reports)) == (1, 1, 2)
    assert recorder.lowerings[0].fingerprint == step.fingerprint


def check_every_report_names_scalars_examples_and_compilations() -> None:
    recorder, uninstall = running(captured(_plain(define), state(), batch(16)))
    function = define()
    carried, _ = function(state(), batch(16))
    carried, _ = function(carried, batch(16))
    function(carried, batch(3))
    uninstall()
    assert [set(r.outputs) for r in recorder.reports] == [{"1/loss"}] * 3
    assert [r.examples for r in recorder.reports] == [16, 16, 3]
    assert [r.compile_seconds is None for r in recorder.reports] == [False, True, False]
    assert "batch/x float32[3, 4]" in recorder.reports[2].signature


def check_other_shapes_and_static_values_are_other_signatures_and_exact() -> None:
    recorder, uninstall = running(captured(_plain(define), state(), batch(16)))
    function = define()
    carried, _ = function(state(), batch(16))
    calls = [(batch(3), 1.0), (batch(16), 1.0), (batch(16), 2.0), (batch(3), 1.0), (batch(8), 1.0)]
    for rows, scale in calls:
        carried, _ = function(carried, rows, scale=scale)
    uninstall()
    expected, _ = define()(state(), batch(16))
    for rows, scale in calls:
        expected, _ = define()(expected, rows, scale=scale)
    np.testing.assert_allclose(carried["w"], expected["w"], rtol=1e-5)
    # `scale` left out and `scale=1.0` are two signatures, as for `jax.jit`.
    assert len(recorder.lowerings) == 5


def check_other_functions_run_as_they_are_on_sharded_arrays() -> None:
    recorder, uninstall = running(captured(_plain(define), state(), batch(16)))
    function = define()
    carried, _ = function(state(), batch(16))
    evaluate = jax.jit(lambda w, x: (w * x).sum())
    bound = jax.device_put(jnp.ones(4), jax.devices()[2])
    values = [float(evaluate(carried["w"], x)) for x in (np.ones(4, np.float32), jnp.ones(4), bound)]
    uninstall()
    assert values == [values[0]] * 3
    assert len(recorder.reports) == 1


def check_the_function_with_another_state_is_another_program() -> None:
    recorder, uninstall = running(captured(_plain(define), state(), batch(16)))
    function = define()
    other, _ = function({"w": jnp.ones(1), "n": jnp.asarray(0)}, batch(16))
    uninstall()
    assert other["w"].shape == (4,)
    assert (recorder.first, recorder.lowerings, recorder.reports) == (0, [], [])


def check_donated_state_is_gone_as_in_a_plain_run() -> None:
    def donating() -> Any:
        return define(donate_argnums=0)

    _, uninstall = running(captured(_plain(donating), state(), batch(16)))
    function = donating()
    carried, _ = function(state(), batch(16))
    after, _ = function(carried, batch(16))
    uninstall()
    assert carried["w"].is_deleted()
    assert not after["w"].is_deleted()


def check_callbacks_of_the_step_are_called() -> None:
    seen: list[float] = []

    def calling_back() -> Any:
        def train_step(state: Any, batch: Any) -> Any:
            loss = (state["w"] * batch["x"]).sum()
            jax.debug.callback(lambda value: seen.append(float(value)), loss)
            return {"w": state["w"] - 0.1 * batch["x"].mean(0)}, loss

        return jax.jit(train_step)

    rows = {"x": batch(16)["x"]}
    recorder, uninstall = running(captured(_plain(calling_back), {"w": jnp.ones(4)}, rows))
    function = calling_back()
    carried, loss = function({"w": jnp.ones(4)}, rows)
    jax.effects_barrier()
    uninstall()
    assert recorder.lowerings[0].has_callbacks
    np.testing.assert_allclose(seen, [float(loss)], rtol=1e-6)
    assert len(carried["w"].sharding.device_set) == 8


def check_a_nan_is_found_in_the_users_own_line() -> None:
    """As JAX finds it under `jax_debug_nans`: the frame that is named is the one that made it."""

    def taking_logs() -> Any:
        def train_step(state: Any, batch: Any) -> Any:
            logs = jnp.log(batch["x"].sum(0))
            return {"w": state["w"] - logs}, logs.sum()

        return jax.jit(train_step, donate_argnums=0)

    fine = {"x": np.ones((16, 4), np.float32)}
    _, uninstall = running(captured(_plain(taking_logs), {"w": jnp.ones(4)}, fine))
    function = taking_logs()
    with jax.debug_nans(True):
        carried, _ = function({"w": jnp.ones(4)}, fine)
        with pytest.raises(FloatingPointError, match="encountered in log") as raised:
            function(carried, {"x": -fine["x"]})
    uninstall()
    assert "train_step" in [frame.name for frame in raised.traceback]


def _plain(make: Callable[[], Any]) -> Any:
    """The user's jitted function as the capturing run sees it: hooked, but run as it is."""
    uninstall = jit_hook.install(lambda function, args, kwargs: function.jitted(*args, **kwargs))
    function = make()
    uninstall()
    return function


if __name__ == "__main__":
    device_checks.main(globals())
