"""Modules of some of a step's operations: parts of the batch, what is computed once, equal bytes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from automap_launch.program.batch_analysis import State
from automap_launch.split.accumulate import accumulate
from automap_launch.split.emit import INDEX, Section
from automap_launch.split.mlir import Origin
from automap_launch.split.pipeline import PartId, cut
from automap_launch.split.step import SplitStep, read
from tests.runtime.captured_by_hand import capture
from tests.split.models import mlp
from tests.split.sections import analysed, evaluate, stages_of


def split(step: Any, *args: Any, states: int = 1) -> tuple[SplitStep, Any]:
    captured = capture(step, *args, states=states)
    batch = {i: State("batch", 0) for i, a in enumerate(captured.arguments) if a.role == "batch"}
    return read(captured.artifact, captured.arguments, captured.results, batch), captured


def operations(section: Section) -> list[str]:
    return [o.name for o in Origin(section.artifact).operations]


def test_a_micro_batch_has_its_part_of_positions_masks_and_tables() -> None:
    """Counters (also reshaped and merged with another dim), random bits, and a table are cut where they are read."""
    table = np.random.default_rng(0).normal(size=(8, 3)).astype("f")

    def step(key: Any, x: Any) -> Any:
        bits = jax.random.uniform(key, x.shape)
        rows = jax.lax.broadcasted_iota(jnp.float32, x.shape, 0)
        flat = jnp.arange(24, dtype=jnp.float32).reshape(8, 3)
        return key, (x * bits * rows + flat * x + x * table)

    x = np.random.default_rng(1).normal(size=(8, 3)).astype("f")
    key = jax.random.key(3)
    step_, _ = split(step, key, x)
    parts = accumulate(step_.line, step_.origin, step_.analysis, 4)
    words = jax.random.key_data(key)
    values = {parts.graph.arguments[0]: words, parts.graph.arguments[1]: x}
    if parts.invariant:
        values.update(zip(parts.invariant.outputs, evaluate(parts.invariant, values), strict=True))
    expected = np.asarray(step(key, x)[1])
    for number in range(4):
        piece = {**values, parts.graph.arguments[1]: x[2 * number : 2 * number + 2], INDEX: np.int32(number)}
        (made,) = evaluate(parts.micro, piece)
        np.testing.assert_allclose(made, expected[2 * number : 2 * number + 2], rtol=1e-6)


def test_what_does_not_depend_on_the_batch_is_computed_once() -> None:
    """A weight norm and a cast run before the micro-batches; constants and other views stay where they are read."""

    def step(w: Any, x: Any) -> Any:
        scaled = (w / jnp.linalg.norm(w)).astype(jnp.bfloat16)
        return w, (x.astype(jnp.bfloat16) @ scaled.T * 2).sum()

    found, _ = split(step, np.ones((4, 3), "f"), np.ones((8, 3), "f"))
    parts = accumulate(found.line, found.origin, found.analysis, 4)
    assert parts.invariant is not None
    assert "stablehlo.sqrt" in operations(parts.invariant)
    assert "stablehlo.sqrt" not in operations(parts.micro)
    kinds = [parts.graph.values[v] for v in parts.invariant.outputs]
    assert [(k.shape, k.dtype) for k in kinds] == [((4, 3), "bfloat16")]
    assert "stablehlo.transpose" in operations(parts.micro)


def test_gradients_are_handed_over_before_the_optimizer_scales_them() -> None:
    """Adam reads (1 - b1) g and g * g: one sum a parameter, not two."""
    captured = mlp(layers=2).capture()
    batch = {i: State("batch", 0) for i, a in enumerate(captured.arguments) if a.role == "batch"}
    found = read(captured.artifact, captured.arguments, captured.results, batch)
    parts = accumulate(found.line, found.origin, found.analysis, 4)
    floats = [v for v in parts.accumulated if parts.graph.values[v].size > 1]
    assert sorted(parts.graph.values[v].shape for v in floats) == [(5,), (12, 32), (32,), (32, 5)]
    assert len(found.analysis.accumulated) > len(parts.accumulated)


def test_equal_layers_of_different_stages_have_equal_modules() -> None:
    _, program, found = analysed(mlp(layers=6, inputs=32, classes=32, width=32))
    assert len(program.blocks) == 7
    wanted = stages_of(program, found.line, [(0, 1), (2, 3), (4, 6)])
    pipeline = cut(found.line, found.origin, found.analysis, state=found.state, stages=3, pieces=4, wanted=wanted)
    forward = [pipeline.sections[PartId("forward", s)] for s in range(2)]
    assert forward[0].artifact == forward[1].artifact
    assert forward[0].inputs != forward[1].inputs
