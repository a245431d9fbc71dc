"""Steps captured by hand, so that the runtime's tests need no front end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.mlir import serialize_portable_artifact

from automap_launch.frontends import jax_internals
from automap_launch.frontends.lowering import source_of
from automap_launch.plan.layout import Layout, Spec
from automap_launch.train_step import Argument, Result, SourceLine, StepIdentity, TrainStep

STABLEHLO_VERSION = "1.0.0"


@dataclass(frozen=True)
class Captured:
    """A flat step: `leaves` are example arguments; `tree` is the structure of its results; `sources` are lines of the
    model's."""

    artifact: bytes
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    leaves: list[Any]
    tree: Any
    flat: Callable[..., list[Any]]
    sources: tuple[SourceLine | None, ...] = ()


def capture(step: Callable[..., Any], *args: Any, states: int = 1, donated: bool = False) -> Captured:
    """Captures `step`, whose first `states` arguments come back as its first results."""
    leaves, treedef = jax.tree.flatten(args)
    paths = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree_util.tree_leaves_with_path(args)]
    count = len(jax.tree.leaves(args[:states]))

    def flat(*flat_args: Any) -> list[Any]:
        return jax.tree.leaves(step(*jax.tree.unflatten(treedef, flat_args)))

    lowered = jax.jit(flat, keep_unused=True).lower(*leaves)
    out = jax.eval_shape(step, *args)
    arguments = tuple(
        Argument(
            path, tuple(leaf.shape), str(leaf.dtype), "state" if i < count else "batch", donated=donated and i < count
        )
        for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True))
    )
    results = tuple(
        Result(
            jax.tree_util.keystr(p, simple=True, separator="/"),
            tuple(leaf.shape),
            str(leaf.dtype),
            i if i < count else None,
        )
        for i, (p, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(out))
    )
    module = lowered.compiler_ir("stablehlo")
    artifact = serialize_portable_artifact(module.operation.get_asm(enable_debug_info=True), STABLEHLO_VERSION)
    module = jax_internals.read_artifact(artifact)
    sources = tuple(source_of(str(operation.location)) for operation in jax_internals.operations(module))
    return Captured(artifact, arguments, results, leaves, jax.tree.structure(out), flat, sources)


def step_of(captured: Captured) -> TrainStep:
    """What a front end makes of it."""
    return TrainStep(
        identity=StepIdentity("step", None),
        frontend="jax",
        arguments=captured.arguments,
        results=captured.results,
        modules={"cpu": captured.artifact},
        fingerprint="",
        sources=captured.sources,
    )


def layout(
    captured: Captured, mesh: dict[str, int], storage: Callable[[Argument], Spec], compute: Any = None
) -> Layout:
    """A layout from one rule; results that replace nothing are replicated."""
    inside = compute or storage
    stored = tuple(storage(a) for a in captured.arguments)
    return Layout(
        mesh=mesh,
        compute=tuple(inside(a) for a in captured.arguments),
        storage=stored,
        results=tuple(stored[r.replaces] if r.replaces is not None else () for r in captured.results),
    )
