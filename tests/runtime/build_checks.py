"""Checks of `build_executable` on eight devices; run by test_build.py."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from automap_launch.errors import PlanError
from automap_launch.plan.build import spans_of
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.execution import Execution
from automap_launch.program.analyse import analyse
from automap_launch.runtime.build import build_executable, divide
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.pipeline import PipelineExecutable
from automap_launch.runtime.stacks import StackedPipeline
from automap_launch.runtime.stage import Stage
from tests.plan.programs import cluster
from tests.runtime import captured_by_hand, device_checks
from tests.runtime.accumulation_checks import compare, sharded, train
from tests.split.models import Model, bucketed, clipped, lm, mlp, scanned


def build(model: Model, axes: dict[str, int], execution: Execution, devices: int = 8) -> tuple[Any, Any]:
    captured = model.capture()
    layout = captured_by_hand.layout(captured, axes, sharded)
    return captured, build_executable(
        captured_by_hand.step_of(captured), layout, execution, devices=jax.devices()[:devices]
    )


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
        executable = build_executable(captured_by_hand.step_of(captured), whole, execution)
        report = compare(last, train(last, captured, executable))
        assert report.equal, f"{execution}: {report}"


def check_a_signature_with_other_blocks_is_cut_by_equal_work() -> None:
    """A plan for sequences of 16; sequences of 4 have twice as many blocks, which the plan's say nothing of. Steps of
    both, one after the other, are those of the plain step."""
    models = {length: bucketed(length) for length in (16, 4)}
    programs, executables = {}, {}
    for length, model in models.items():
        captured = model.capture()
        step = captured_by_hand.step_of(captured)
        programs[length] = program = analyse(step)
        decision = Decision(2, 1, micro_batches=2, cuts=(3,), schedule="1f1b")
        execution = Execution(2, 2, "1f1b", blocks=spans_of(decision, programs[16]))
        layout = derive_layout(program, decision)
        executables[length] = build_executable(step, layout, execution, devices=jax.devices()[:4])
    assert len(programs[4].blocks) > len(programs[16].blocks)

    def share(blocks: Any, end: int) -> float:
        return float(sum(b.flops for b in blocks[:end]) / sum(b.flops for b in blocks))

    assert abs(executables[16].pipeline.shares[0] - share(programs[16].blocks, 3)) < 0.05
    work = [b.flops + b.backward_flops for b in programs[4].blocks]
    even = min(range(1, len(work)), key=lambda cut: max(sum(work[:cut]), sum(work[cut:])))
    assert even != 3
    assert abs(executables[4].pipeline.shares[0] - share(programs[4].blocks, even)) < 0.05

    state = expected = models[16].init()
    for seed, length in enumerate((16, 4, 16)):
        batch, captured = models[length].batch(seed), models[length].capture()
        state, made = jax.tree.unflatten(captured.tree, executables[length](jax.tree.leaves((state, batch))))
        expected, metrics = models[length].step(expected, batch)
        np.testing.assert_allclose(made["loss"], metrics["loss"], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state, expected)


def check_layers_stacked_in_one_array_lie_on_their_stages() -> None:
    """A scan over layers: no stage has the parameters or optimizer state of another, no gradient goes between them."""
    model = lm(layers=4, scan=True, optimizer=clipped())
    captured, executable = build(model, {"data": 2, "model": 1}, Execution(4, 4, "1f1b"))
    assert isinstance(executable, StackedPipeline)
    report = compare(model, train(model, captured, executable))
    assert report.equal, str(report)
    placed = executable.place(executable(captured.leaves)[:-2] + captured.leaves[-2:])
    layers = [(a, x) for a, x in zip(captured.arguments, placed, strict=True) if "layers" in a.path]
    assert len(layers) == 15
    for argument, array in layers:
        assert array.shape == argument.shape
        assert array.sharding.spec[0] == "stage"
        for shard in array.addressable_shards:
            assert shard.index[0] == slice(shard.device.id // 2, shard.device.id // 2 + 1)
    sent = {v for values in executable.inner.pipeline.cargo.values() for v in values}
    embedding = 24 * 16
    assert all(executable.inner.pipeline.graph.values[v].size in (1, embedding, 16 * 8 * 16) for v in sent)


def check_layers_that_do_not_divide_lie_in_chunks_on_some_stages() -> None:
    """Three layers on four stages: one stage has no layer, each layer's state lies on the stage that has the layer."""
    model = lm(layers=3, scan=True, optimizer=optax.adafactor(1e-2, min_dim_size_to_factor=8))
    captured, executable = build(model, {"data": 1, "model": 1}, Execution(4, 4, "1f1b"), devices=4)
    assert isinstance(executable, StackedPipeline)
    report = compare(model, train(model, captured, executable))
    assert report.equal, str(report)
    placed = executable.place(captured.leaves)
    for argument, array in zip(captured.arguments, placed, strict=True):
        if "layers" in argument.path and argument.shape[0] == 3:
            assert array.sharding.spec[0] == "stage"
            assert array.sharding.shard_shape(array.shape)[0] == 1


def check_layers_that_run_elsewhere_are_held_sent_and_predicted() -> None:
    """Six layers as 1, 2, 2 and 1 on four stages, which lie in chunks of two on three of them; as 3 and 3, which lie
    where they run, from the last layer on; five layers on two stages, which lie on the first; and one layer a stage,
    sharded over two devices. What each device holds after a step, and what its stage is sent of other stages' layers,
    is what the plan's costs say. Reduced gradients are sharded as that state is."""
    reduced: list[Any] = []
    run_reduce = Stage._run_reduce

    def recorded(stage: Stage) -> None:
        run_reduce(stage)
        reduced.extend(stage.values[v] for v in stage._pipeline.sums[stage._number])

    for layers, reverse, decision in (
        (6, False, Decision(2, 1, micro_batches=4, cuts=(1, 3, 5), schedule="1f1b")),
        (6, True, Decision(1, 1, micro_batches=4, cuts=(3,), schedule="gpipe")),
        (5, False, Decision(1, 2, micro_batches=4, cuts=(3,), schedule="zero_bubble")),
        (4, False, Decision(2, 1, micro_batches=2, cuts=(1, 2, 3), schedule="1f1b", storage="state")),
    ):
        model, cuts = scanned(layers, reverse), decision.cuts
        captured = model.capture()
        step = captured_by_hand.step_of(captured)
        program = analyse(step)
        blocks = spans_of(decision, program)
        execution = Execution(decision.stages, decision.micro_batches, decision.schedule, blocks=blocks)
        devices = jax.devices()[: decision.devices]
        executable = build_executable(step, derive_layout(program, decision), execution, devices=devices)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stage, "_run_reduce", recorded)
            report = compare(model, train(model, captured, executable))
        assert report.equal, f"{cuts}: {report}"
        large = [x for x in reduced if x.size > 1]
        assert len(large) >= 2 * layers
        parts = decision.data if decision.storage == "state" else 1
        assert all(shard.data.size * parts == x.size for x in large for shard in x.addressable_shards)
        reduced.clear()

        costs = CostModel(program, cluster())
        predicted = costs.stages(decision)
        state = executable(captured.leaves)[: sum(r.replaces is not None for r in captured.results)]
        held = np.zeros((decision.stages, decision.devices // decision.stages))
        for shard in (shard for array in state for shard in array.addressable_shards):
            held[divmod(shard.device.id, held.shape[1])] += shard.data.nbytes
        np.testing.assert_allclose(held, (predicted.parameters + predicted.optimizer)[:, None] + 0 * held, atol=8)

        inner = executable.inner if isinstance(executable, StackedPipeline) else executable
        seconds = np.zeros((2, decision.stages))
        for task, message in inner.messages.items():
            size = sum(kind.bytes for kind in message.kinds if len(kind.shape) > 1 and kind.shape[0] == 1)
            if size and task.of in ("prepare", "hold"):
                seconds[0, task.peer] += 1e-6 + 1e-10 * size
            elif size and task.of == "reduce":
                seconds[1, task.stage] += 1e-6 + 1e-10 * size
            assert not any(kind.shape[:1] == (layers,) for kind in message.kinds), f"a whole stack is sent: {task}"
        lending = costs.block_costs(decision).lending(np.array([cuts]))
        if lending is None:
            assert not seconds.any()
        else:
            np.testing.assert_allclose(seconds, [lending.before[0], lending.after[0]])
            assert seconds.any()


def check_the_update_works_on_shards_of_what_is_stored_sharded() -> None:
    """Adam's square roots are those of one device's eighth; a parameter that is stored or made so is gathered once."""
    model = mlp(layers=3, width=64, inputs=64)
    step = captured_by_hand.step_of(model.capture(donated=True))
    program = analyse(step)
    gathered = {}
    for storage, size in (("none", 64 * 64), ("optimizer", 8 * 64), ("state", 8 * 64)):
        layout = derive_layout(program, Decision(8, 1, storage=storage))  # type: ignore[arg-type]
        compiled = build_executable(step, layout, Execution()).lower().compile().as_text()
        shapes = re.findall(r"f32\[(.*)\]\S* sqrt\(", compiled)
        assert max(np.prod([int(n) for n in shape.split(",") if n]) for shape in shapes) == size
        gathered[storage] = len(re.findall(r" all-gather\(", compiled))
    # A bias of five stays whole; joined gathers are fewer.
    assert all(0 < gathered[storage] - gathered["none"] <= 5 for storage in ("optimizer", "state")), gathered


def check_a_last_batch_of_one_example_runs_whole_or_is_refused_with_what_helps() -> None:
    model = mlp(layers=2)
    last = Model(model.init, model.step, lambda seed: model.batch(seed, 1))  # type: ignore[call-arg]
    captured, executable = build(last, {"data": 1, "model": 2}, Execution(micro_batches=4), devices=2)
    report = compare(last, train(last, captured, executable))
    assert report.equal, str(report)
    with pytest.raises(PlanError, match="batch of examples") as refused:
        build(last, {"data": 1, "model": 1}, Execution(stages=2, micro_batches=4), devices=2)
    assert "drop_remainder" in str(refused.value.hint)


def normalised() -> Model:
    """Outputs are normalised over the batch; the mean output is a metric."""

    def step(w: Any, x: Any) -> tuple[Any, Any]:
        def loss(w: Any) -> Any:
            y = jnp.tanh(x @ w)
            return (((y - y.mean(0)) / (y.std(0) + 1)) ** 3).sum() / len(x), y.mean(0)

        (value, mean), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        return w - gradient, (value, mean)

    def batch(seed: int) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=(16, 4)).astype("f")

    return Model(lambda: jnp.eye(4) / 2, step, batch)


def check_statistics_of_each_micro_batch_where_allowed() -> None:
    """The same as the mean over micro-batches of the plain step, each with its own statistics."""
    model = normalised()
    execution = Execution(micro_batches=4, local_statistics=True)
    _, executable = build(model, {"data": 2, "model": 1}, execution, devices=2)
    w, x = model.init(), model.batch(0)
    new, value, mean = executable(jax.tree.leaves((w, x)))
    parts = [model.step(w, x[2 * i : 2 * i + 2]) for i in range(8)]
    np.testing.assert_allclose(new, w + sum(p[0] - w for p in parts) / 8, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, sum(p[1][0] for p in parts) / 8, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(mean, model.step(w, x)[1][1], rtol=1e-5, atol=1e-7)
    assert abs(float(value - model.step(w, x)[1][0])) > 1e-3
    with pytest.raises(PlanError, match="runs in one stage"):
        build(model, {"data": 2, "model": 1}, Execution(stages=2, micro_batches=4, local_statistics=True), devices=4)


def check_what_cannot_be_cut_is_refused() -> None:
    """Normalised over the batch; and a step that calls back into Python."""
    with pytest.raises(PlanError, match="over the batch") as refused:
        build(normalised(), {"data": 2, "model": 1}, Execution(micro_batches=4))
    assert "allow_local_batch_stats" in str(refused.value.hint)
    captured, _ = build(mlp(layers=2), {"data": 8, "model": 1}, Execution())
    layout = captured_by_hand.layout(captured, {"data": 2, "model": 1}, sharded)
    called_back = replace(captured_by_hand.step_of(captured), has_callbacks=True)
    with pytest.raises(PlanError, match="calls back into Python"):
        build_executable(called_back, layout, Execution(stages=4), traced=captured.flat)


if __name__ == "__main__":
    device_checks.main(globals())
