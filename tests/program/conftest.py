"""Steps built from small JAX functions: traced, lowered to a portable artifact, roles given by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.extend import mlir
from jax.extend.mlir.dialects import stablehlo

from automap_launch.train_step import Argument, Result, SourceLine, StepIdentity, TrainStep, fingerprint_of

BuildStep = Callable[..., TrainStep]


def _paths(tree: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def make_step(
    function: Callable[..., Any], state: tuple[Any, ...], *batch: Any, other: tuple[Any, ...] = ()
) -> TrainStep:
    """A step `function(*state, *batch, *other) -> (*new state, *metrics)`; leaves may be abstract."""
    arguments = (*state, *batch, *other)
    roles = ["state"] * len(state) + ["batch"] * len(batch) + ["other"] * len(other)
    traced = jax.jit(function, keep_unused=True).trace(*arguments)
    module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    version = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_4)
    artifact = bytes(mlir.serialize_portable_artifact(module, version, False))
    flat = []
    for k, (tree, role) in enumerate(zip(arguments, roles, strict=True)):
        for path, leaf in zip(_paths(tree), jax.tree.leaves(tree), strict=True):
            name = f"{k}/{path}" if path else str(k)
            flat.append(Argument(name, tuple(leaf.shape), str(leaf.dtype), role))  # type: ignore[arg-type]
    out = traced.out_info
    states = len(jax.tree.leaves(state))
    results = [
        Result(str(k), tuple(leaf.shape), str(leaf.dtype), k if k < states else None)
        for k, leaf in enumerate(jax.tree.leaves(out))
    ]
    return TrainStep(
        identity=StepIdentity("step", None),
        frontend="jax",
        arguments=tuple(flat),
        results=tuple(results),
        modules={"cpu": artifact},
        fingerprint=fingerprint_of(str(module)),
        sources=_sources(artifact),
    )


def _sources(artifact: bytes) -> tuple[SourceLine | None, ...]:
    """Every operation is said to stand in `step.py`, at the line that is its position."""
    from automap_launch.program.mlir import read_module

    return tuple(SourceLine("step.py", k) for k in range(read_module(artifact).operations))


@pytest.fixture(scope="session")
def build_step() -> BuildStep:
    return make_step
