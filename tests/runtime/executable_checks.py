"""Checks of `Executable` on eight devices; run by test_executable.py."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.plan.layout import Layout
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh
from automap_launch.train_step import Argument, Result
from tests.runtime import captured_by_hand, device_checks, models

MESH = make_mesh(models.MESH)


def build(captured: Any, storage: Any, compute: Any = None, **options: Any) -> Executable:
    layout = captured_by_hand.layout(captured, models.MESH, storage, compute)
    return Executable(captured.artifact, captured.arguments, captured.results, layout, MESH, **options)


def equals_plain_jax(storage: Any, compute: Any = None, donated: bool = False) -> Executable:
    x, y = models.batch()
    captured = captured_by_hand.capture(models.step, models.init(), x, y, donated=donated)
    executable = build(captured, storage, compute)
    state, reference, plain = models.init(), models.init(), jax.jit(models.step)
    for _ in range(5):
        reference, expected = plain(reference, x, y)
        state, loss = jax.tree.unflatten(captured.tree, executable(jax.tree.leaves((state, x, y))))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert models.difference(state, reference) < 1e-5
    for argument, leaf, spec in zip(
        captured.arguments, jax.tree.leaves(state), executable.layout.storage, strict=False
    ):
        assert leaf.sharding.is_equivalent_to(jax.NamedSharding(MESH, jax.P(*spec)), leaf.ndim), argument.path
    return executable


def collectives(executable: Executable) -> Counter[str]:
    text = executable.lower().compile().as_text()
    return Counter(re.findall(r"(all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(", text))


def check_data_parallel_equals_plain_jax() -> None:
    found = collectives(equals_plain_jax(models.data_parallel))
    assert found["all-reduce"] >= 1
    assert found["all-gather"] == 0, found


def check_tensor_parallel_equals_plain_jax() -> None:
    equals_plain_jax(models.tensor_parallel)


def check_zero_gathers_parameters_at_the_entry_and_equals_plain_jax() -> None:
    found = collectives(equals_plain_jax(models.zero, models.tensor_parallel))
    assert found["all-gather"] >= 2, found


def check_donated_state_equals_plain_jax_and_is_gone() -> None:
    equals_plain_jax(models.data_parallel, donated=True)
    x, y = models.batch()
    captured = captured_by_hand.capture(models.step, models.init(), x, y, donated=True)
    executable = build(captured, models.tensor_parallel)
    placed = executable.place(captured.leaves)
    executable(placed)
    assert [leaf.is_deleted() for leaf in placed] == [a.donated for a in captured.arguments]


def check_arrays_of_the_user_survive_when_they_were_not_donated() -> None:
    x, y = models.batch()
    state = models.init()
    captured = captured_by_hand.capture(models.step, state, x, y)
    executable = build(captured, models.data_parallel)
    leaves = jax.tree.leaves((state, jnp.asarray(x), jnp.asarray(y)))
    executable(executable(leaves)[:-1] + leaves[-2:])
    assert not any(leaf.is_deleted() for leaf in leaves)
    assert models.difference(state, models.init()) == 0


def check_numpy_values_are_copied() -> None:
    x, y = models.batch()
    captured = captured_by_hand.capture(models.step, models.init(), x, y)
    executable = build(captured, models.data_parallel)
    buffer = x.copy()
    placed = executable.place([*captured.leaves[:-2], buffer, y])
    buffer[:] = 0
    np.testing.assert_array_equal(np.asarray(placed[-2]), x)


def check_placed_leaves_are_passed_on_as_they_are() -> None:
    x, y = models.batch()
    captured = captured_by_hand.capture(models.step, models.init(), x, y)
    executable = build(captured, models.tensor_parallel)
    results = executable(captured.leaves)
    placed = executable.place([*results[:-1], x, y])
    assert all(after is before for after, before in zip(placed, results[:-1], strict=False))


def check_state_from_elsewhere_is_placed_again() -> None:
    x, y = models.batch()
    captured = captured_by_hand.capture(models.step, models.init(), x, y)
    executable = build(captured, models.tensor_parallel)
    state = executable(captured.leaves)[:-1]
    expected = executable([*state, x, y])[-1]
    key = jnp.issubdtype
    as_numpy = [s if key(s.dtype, jax.dtypes.prng_key) else np.asarray(s) for s in state]
    on_one_device = [jax.device_put(s, jax.devices()[3]) for s in state]
    elsewhere = [jax.device_put(s, jax.NamedSharding(MESH, jax.P())) for s in state]
    for leaves in (as_numpy, on_one_device, elsewhere):
        np.testing.assert_array_equal(executable([*leaves, x, y])[-1], expected)


def check_deferred_values_are_created_in_place_and_at_once() -> None:
    calls = []

    def materialize(values: Any, shardings: Any) -> list[jax.Array]:
        calls.append(len(values))
        return [jax.device_put(np.ones(v.shape, v.dtype), s) for v, s in zip(values, shardings, strict=True)]

    captured = captured_by_hand.capture(lambda s, x: (s + x.sum(), x.mean()), jnp.ones((8, 8)), np.ones((8, 2), "f"))
    executable = build(captured, models.data_parallel, materialize=materialize)
    without = build(captured, models.data_parallel)
    tracers: list[Any] = []
    jax.make_jaxpr(lambda s: tracers.append(s) or s)(jnp.ones((8, 8)))
    result, _ = executable([tracers[0], captured.leaves[1]])
    assert calls == [1]
    np.testing.assert_array_equal(result, np.full((8, 8), 17.0))
    with pytest.raises(ValueError, match="argument 0 is deferred"):
        without.place([tracers[0], captured.leaves[1]])


def check_64_bit_types_of_the_module_hold_without_the_flag() -> None:
    with jax.enable_x64(True):
        captured = captured_by_hand.capture(
            lambda s, x: (s + x.sum(), s * 2), np.float64(1e-12) + np.ones(4), np.ones((8, 2), np.float64)
        )
    assert not jax.config.jax_enable_x64
    state, double = build(captured, models.data_parallel)(captured.leaves)
    assert (state.dtype, double.dtype) == (np.float64, np.float64)
    np.testing.assert_allclose(np.asarray(double) - 2, 2e-12, rtol=1e-3)


def check_a_traceable_function_runs_in_place_of_a_module() -> None:
    x, y = models.batch()
    captured = captured_by_hand.capture(models.step, models.init(), x, y)
    layout = captured_by_hand.layout(captured, models.MESH, models.tensor_parallel)
    executable = Executable(captured.flat, captured.arguments, captured.results, layout, MESH)
    expected = build(captured, models.tensor_parallel)(captured.leaves)[-1]
    np.testing.assert_allclose(executable(captured.leaves)[-1], expected, rtol=1e-6)


def check_one_device_needs_no_shardings_and_compiles_once() -> None:
    one = {"data": 1}
    mesh = make_mesh(one, jax.devices()[:1])

    def step(count: Any, x: Any) -> tuple[Any, Any]:
        return count + 1, x.sum() * count

    captured = captured_by_hand.capture(step, jnp.asarray(0), np.ones((8, 2), "f"))
    layout = captured_by_hand.layout(captured, one, models.data_parallel)
    executable = Executable(captured.artifact, captured.arguments, captured.results, layout, mesh)
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compilations.append(event) if event.endswith("backend_compile_duration") else None
    )
    count: Any = 0  # weakly typed, as a script may begin
    for _ in range(3):
        count, total = executable([count, captured.leaves[1]])
    assert (int(count), float(total)) == (3, 32.0)
    assert len(compilations) == 1, compilations


def check_what_does_not_fit_is_refused() -> None:
    captured = captured_by_hand.capture(lambda s, x: (s, x.sum()), jnp.ones(4), np.ones((8, 2), "f"))
    layout = captured_by_hand.layout(captured, models.MESH, models.data_parallel)
    short = Layout(layout.mesh, layout.compute[:1], layout.storage[:1], layout.results)
    other = dataclasses.replace(layout, mesh={"data": 2, "model": 4})
    wrong = (Argument("s", (5,), "float32", "state"), captured.arguments[1])
    results = (Result("0", (4,), "float32", 0), captured.results[1])
    cases: list[tuple[Any, str]] = [
        (lambda: Executable(captured.artifact, captured.arguments, results, short, MESH), "for 1 arguments"),
        (lambda: Executable(captured.artifact, captured.arguments, results, other, MESH), "for the mesh"),
        (lambda: Executable(captured.artifact, wrong, results, layout, MESH), "argument s is float32"),
        (lambda: build(captured, models.data_parallel)([jnp.ones(4)]), "2 arguments, got 1"),
        (lambda: Executable(b"nonsense", captured.arguments, results, layout, MESH), "no StableHLO artifact"),
        (lambda: make_mesh({"data": 3}), "3 places, but there are 8 devices"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


if __name__ == "__main__":
    device_checks.main(globals())
