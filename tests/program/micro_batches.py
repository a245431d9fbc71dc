"""Runs a step in micro-batches as the batch analysis says, to be compared with the step itself."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from automap_launch.program.batch_analysis import BatchAnalysis, State
from automap_launch.program.micro_batches import analyse_batch
from automap_launch.program.mlir import read_module
from automap_launch.program.unroll import unroll
from automap_launch.runtime import jax_internals
from automap_launch.split.emit import INDEX, Emitter, Section
from automap_launch.split.mlir import Origin
from automap_launch.train_step import TrainStep

Arrays = list[np.ndarray[Any, Any]]
_COMPILED: dict[bytes, Any] = {}


def run(section: Section | bytes, arrays: Arrays) -> Arrays:
    """Runs a module, compiled quickly rather than well."""
    artifact = section.artifact if isinstance(section, Section) else section
    if artifact not in _COMPILED:
        module, (_, outputs) = jax_internals.Module(artifact, "main"), jax_internals.signature(artifact)
        lowered = jax.jit(lambda *a: jax_internals.bind(module, outputs, a), keep_unused=True).lower(*arrays)
        _COMPILED[artifact] = lowered.compile(
            {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        )
    return [np.asarray(r) for r in _COMPILED[artifact](*arrays)]


def part(array: np.ndarray[Any, Any], state: State, k: int, m: int) -> np.ndarray[Any, Any]:
    """The k-th of m micro-batches' part of a batch value."""
    shape = array.shape
    cut = array.reshape(*shape[: state.dim], state.outer, m, -1, *shape[state.dim + 1 :])
    taken = np.take(cut, k, state.dim + 1)
    return taken.reshape(*shape[: state.dim], -1, *shape[state.dim + 1 :])


def together(parts: Arrays, state: State) -> np.ndarray[Any, Any]:
    """A batch value from the micro-batches' parts."""
    shape = parts[0].shape
    cut = [p.reshape(*shape[: state.dim], state.outer, -1, *shape[state.dim + 1 :]) for p in parts]
    joined = np.stack(cut, state.dim + 1)
    return joined.reshape(*shape[: state.dim], -1, *shape[state.dim + 1 :])


REDUCE = {"add": np.add, "max": np.maximum, "min": np.minimum}


def run_in_micro_batches(
    step: TrainStep,
    analysis: BatchAnalysis,
    trained: list[int],
    arrays: Arrays,
    m: int,
    *,
    local_statistics: bool = False,
) -> Arrays:
    """Results of a step in `m` micro-batches, by an analysis of its unrolled form with the same cut of the arguments,
    which must not be refused."""
    artifact = step.modules["cpu"]
    line = unroll(read_module(artifact))
    graph = line.graph
    found = analyse_batch(graph, analysis.arguments, trained, local_statistics)
    assert not found.refusals
    emitter = Emitter(line, Origin(artifact), found, m)
    whole = dict(zip(graph.arguments, arrays, strict=True))
    if found.prologue_values:
        section = emitter.whole(found.prologue, found.prologue_values)
        whole.update(zip(section.outputs, run(section, [whole[v] for v in section.inputs]), strict=True))
    made: dict[int, Arrays] = {v: [] for v in (*found.accumulated, *found.gathered)}
    section = emitter.micro(found.micro, tuple(made), found.prologue_values)
    for k in range(m):
        inputs = [
            np.int32(k)
            if v == INDEX
            else part(whole[v], found.states[v], k, m)
            if found.states[v].kind == "batch"
            else whole[v]
            for v in section.inputs
        ]
        for value, array in zip(section.outputs, run(section, inputs), strict=True):
            made[value].append(array)
    for value in found.accumulated:
        whole[value] = REDUCE[found.states[value].reduction].reduce(made[value])
    for value in found.gathered:
        whole[value] = together(made[value], found.states[value])
    section = emitter.whole(found.update, graph.results, whole)
    return run(section, [whole[v] for v in section.inputs])
