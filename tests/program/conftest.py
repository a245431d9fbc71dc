"""Steps built from small JAX functions: traced, lowered to a portable artifact, roles given by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.extend import mlir
from jax.extend.mlir.dialects import stablehlo

from automap_launch.program.flatten import flatten
from automap_launch.program.linkage import link
from automap_launch.program.mlir import read_module
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
    # Printing brings in an operation of another dialect, which only a mixed artifact holds.
    artifact = bytes(mlir.serialize_portable_artifact(module, version, "sdy." in str(module)))
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
    return tuple(SourceLine("step.py", k) for k in range(read_module(artifact).operations))


@pytest.fixture(scope="session")
def build_step() -> BuildStep:
    return make_step


class Linked:
    """Classes of a function's arguments and results, by the analysis below `analyse`."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.step = make_step(function, (), *arguments)
        self.graph = flatten(read_module(self.step.modules["cpu"]), self.step.sources)
        self.linkage = link(self.graph)
        self.arguments = [self.linkage.classes[v] for v in self.graph.arguments]
        self.results = [self.linkage.classes[v] for v in self.graph.results]

    def node(self, name: str) -> int:
        """Index of the only node of that name."""
        (found,) = [k for k, node in enumerate(self.graph.nodes) if node.name == name]
        return found

    def whole(self, name: str) -> set[tuple[str, int]]:
        """Dims that the only node of that name wants whole: (`0` of the first operand or `-1` of the result, dim)."""
        node = self.graph.nodes[self.node(name)]
        slots = {v: str(k) for k, v in reversed(list(enumerate(node.operands)))} | {
            v: str(-k - 1) for k, v in enumerate(node.results)
        }
        return {(slots[v], dim) for v, dim in self.linkage.whole[self.node(name)]}

    def contracted(self, name: str) -> set[tuple[int, int]]:
        return set(self.linkage.contracted[self.node(name)])


@pytest.fixture(scope="session")
def linked() -> Callable[..., Linked]:
    return lambda function, *arguments: Linked(function, arguments)
