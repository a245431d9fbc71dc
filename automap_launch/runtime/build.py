"""From a step and a plan to what runs it: one executable, one with gradient accumulation, or a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax

from automap_launch.errors import PlanError
from automap_launch.plan.baselines import even_cuts
from automap_launch.plan.execution import Execution
from automap_launch.plan.layout import Layout
from automap_launch.plan.sharding import DATA
from automap_launch.program.analyse import analyse
from automap_launch.program.divide import why_undivided
from automap_launch.program.flatten import flatten
from automap_launch.program.mlir import read_module
from automap_launch.program.program import Program
from automap_launch.program.unroll import Line
from automap_launch.runtime.accumulation import AccumulatedStep
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh
from automap_launch.runtime.pipeline import PipelineExecutable
from automap_launch.runtime.placement import Materialize
from automap_launch.runtime.stacks import StackedPipeline, chunked
from automap_launch.split.accumulate import accumulate
from automap_launch.split.blocks import stages_wanted
from automap_launch.split.pipeline import cut
from automap_launch.split.step import by_stage, read
from automap_launch.train_step import TrainStep

Leaves = Sequence[Any]

_NO_BATCH = (
    "a batch of one example, the last of an epoch perhaps, cannot run in stages: leave it out (drop_remainder=True, "
    "drop_last=True), or pin search.pin.stages=1"
)


def build_executable(
    step: TrainStep,
    layout: Layout,
    execution: Execution,
    *,
    platform: str = "cpu",
    devices: Sequence[Any] | None = None,
    traced: Callable[..., Leaves] | None = None,
    materialize: Materialize | None = None,
) -> Executable | PipelineExecutable | StackedPipeline:
    """Makes a step runnable.

    A batch that cannot be cut as the plan says (the last of an epoch) is cut into fewer micro-batches, or not over
    the data axis: it is as exact, if slower. A batch of one example runs whole, and not in stages.

    Args:
      step: the signature at hand; the captured one, or another batch size.
      layout: shardings over the mesh of one stage.
      platform: of the module to run. devices: of the launch; default: all.
      traced: a step that calls back into Python, as a traceable function: run in the place of `step`'s module.
      materialize: creates deferred values in given shardings.

    Raises:
      PlanError: the step cannot be cut as the plan says, of which `program.divide` knows when the plan is made.
      ValueError: there are not as many devices as the plan has.
    """
    chosen = list(jax.devices() if devices is None else devices)
    if not execution.is_split:
        function = traced or step.modules[platform]
        mesh = make_mesh(layout.mesh, chosen)
        return Executable(function, step.arguments, step.results, layout, mesh, materialize=materialize)
    program = analyse(step, platform, execution.local_statistics, execution.max_blocks)
    refusal = why_undivided(program, execution.stages)
    if refusal is not None and refusal.kind == "no batch" and execution.stages == 1:
        # A single example: a dim of size one is no batch, and there is nothing to accumulate.
        undivided = replace(execution, micro_batches=1, schedule="none")
        return build_executable(
            step, layout, undivided, platform=platform, devices=devices, traced=traced, materialize=materialize
        )
    if refusal is not None:
        raise refusal.error if refusal.kind != "no batch" else PlanError(refusal.reason, hint=_NO_BATCH)
    batch = program.batch_analysis.arguments if program.batch_analysis else {}
    whole = read(
        step.modules[platform],
        step.arguments,
        step.results,
        batch,
        sources=step.sources,
        local_statistics=execution.local_statistics,
    )
    data = layout.mesh.get(DATA, 1)
    micro_batches, replicas = divide(whole.analysis.max_micro_batches, execution.micro_batches, data)
    pieces = micro_batches * replicas
    if execution.stages == 1:
        mesh = make_mesh(layout.mesh, chosen)
        parts = accumulate(whole.line, whole.origin, whole.analysis, pieces)
        accumulated = AccumulatedStep(parts, step.arguments, step.results, micro_batches, mesh)
        return Executable(accumulated, step.arguments, step.results, layout, mesh, materialize=materialize)
    schedule = "1f1b" if execution.schedule == "none" else execution.schedule
    wanted = _wanted(program, execution, platform)
    whole = by_stage(whole, step.results, execution.stages, wanted)
    inner = chunked(step.arguments, step.results, layout, whole.chunks)
    pipeline = PipelineExecutable(
        cut(
            whole.line,
            whole.origin,
            whole.analysis,
            state=whole.state,
            stages=execution.stages,
            pieces=pieces,
            split_backward=schedule == "zero_bubble",
            wanted=wanted(whole.line),
        ),
        inner.arguments,
        inner.results,
        inner.layout,
        schedule=schedule,
        micro_batches=micro_batches,
        devices=[[chosen[i] for i in stage] for stage in execution.devices_of(len(chosen))],
        materialize=materialize,
    )
    if set(whole.chunks) == {1}:
        return pipeline
    return StackedPipeline(pipeline, step.arguments, step.results, whole.chunks, materialize)


def divide(largest: int, micro_batches: int, data: int) -> tuple[int, int]:
    """Micro-batches, and replicas that cut their own share of the batch: as wanted if their product divides `largest`;
    else every replica with fewer micro-batches; else no share for each replica."""
    for replicas in dict.fromkeys((data, 1)):
        for count in range(micro_batches, 0, -1):
            if largest % (count * replicas) == 0:
                return count, replicas
    raise AssertionError("one piece always divides")


def _wanted(program: Program, execution: Execution, platform: str) -> Callable[[Line], dict[int, int]]:
    """Stages of a line's operations as the plan's blocks have them."""
    flat = flatten(read_module(program.step.modules[platform]), program.step.sources)
    spans = _spans(program, execution)
    return lambda line: stages_wanted(line, flat, program.blocks, spans)


def _spans(program: Program, execution: Execution) -> Sequence[tuple[int, int]]:
    """First and last block of each stage; with as much work each as can be where the plan leaves that open, and where
    this signature of the step has other blocks than the one that the plan is for."""
    if execution.blocks and execution.blocks[-1][1] == len(program.blocks) - 1:
        return execution.blocks
    work = [block.flops + block.backward_flops for block in program.blocks]
    bounds = (0, *even_cuts(work, execution.stages), len(work))
    return [(first, end - 1) for first, end in pairwise(bounds)]
