"""A captured step, read and analysed for splitting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from automap_launch.errors import PlanError
from automap_launch.program import batch_analysis
from automap_launch.program.batch_analysis import BatchAnalysis
from automap_launch.program.micro_batches import analyse_batch
from automap_launch.program.mlir import read_module
from automap_launch.split.mlir import Origin
from automap_launch.split.stages import State
from automap_launch.split.unroll import Line, unroll
from automap_launch.train_step import Argument, Result, SourceLine


@dataclass(frozen=True)
class SplitStep:
    """A step that can be cut.

    Attributes:
      line: straight-line. origin: its module.
      analysis: how its values depend on the batch. state: its state among arguments and results of `line.graph`.
    """

    line: Line
    origin: Origin
    analysis: BatchAnalysis
    state: State


def read(
    artifact: bytes,
    arguments: tuple[Argument, ...],
    results: tuple[Result, ...],
    batch: Mapping[int, batch_analysis.State],
    *,
    sources: tuple[SourceLine | None, ...] = (),
    local_statistics: bool = False,
) -> SplitStep:
    """Reads a step's module for splitting.

    Args:
      artifact: portable StableHLO. arguments, results: of the step. sources: see `TrainStep`.
      batch: by argument index, how the arguments that hold the batch are cut.
      local_statistics: allow each micro-batch statistics of its own.

    Raises:
      PlanError: the step cannot be cut exactly; it says where in the user's code and why.
    """
    line = unroll(read_module(artifact), sources)
    graph = line.graph
    trained = [
        i
        for i, argument in enumerate(arguments)
        if argument.role == "state" and graph.values[graph.arguments[i]].is_float
    ]
    analysis = analyse_batch(graph, batch, trained, local_statistics)
    if analysis.refusals:
        first = analysis.refusals[0]
        hint = None
        if first.local_statistics:
            hint = "search.allow_local_batch_stats=true lets each micro-batch use its own"
        raise PlanError(
            f"the step cannot run in micro-batches: {first.reason}",
            hint=hint,
            file=first.source.file if first.source else None,
            line=first.source.line if first.source else None,
        )
    replaced = [(r.replaces, k) for k, r in enumerate(results) if r.replaces is not None]
    state = State(
        arguments=tuple(graph.arguments[i] for i, _ in replaced), results=tuple(graph.results[k] for _, k in replaced)
    )
    return SplitStep(line, Origin(artifact), analysis, state)


def check_pieces(analysis: BatchAnalysis, pieces: int) -> None:
    """Raises PlanError when the batch cannot be cut into so many equal parts."""
    if analysis.max_micro_batches % pieces:
        raise PlanError(
            f"the batch cannot be cut into {pieces} equal parts (micro-batches x replicas): "
            f"their number must divide {analysis.max_micro_batches}",
            hint="choose another number of micro-batches, or another batch size",
        )
