"""A step cut for gradient accumulation: what runs once before, for each micro-batch, and once after."""

from __future__ import annotations

from dataclasses import dataclass

from automap_launch.program.batch_analysis import BatchAnalysis
from automap_launch.program.graph import Graph
from automap_launch.program.unroll import Line
from automap_launch.split.boundary import hand_over_early
from automap_launch.split.emit import Emitter, Section
from automap_launch.split.mlir import Origin


@dataclass(frozen=True)
class Accumulation:
    """Sections of a step, in the order in which they run.

    Attributes:
      prologue: on the whole batch, before the first micro-batch; None where nothing is.
      invariant: what every micro-batch would compute alike; None where nothing is.
      micro: one micro-batch. Its outputs are `accumulated`, then `gathered`.
      update: makes the step's results.
      accumulated, gathered: value ids; see `BatchAnalysis`.
      graph, analysis: shapes and batch states of all values.
      pieces: into how many equal parts the batch is cut.
    """

    prologue: Section | None
    invariant: Section | None
    micro: Section
    update: Section
    accumulated: tuple[int, ...]
    gathered: tuple[int, ...]
    graph: Graph
    analysis: BatchAnalysis
    pieces: int


def accumulate(line: Line, origin: Origin, analysis: BatchAnalysis, pieces: int) -> Accumulation:
    """Cuts a step that `analysis` finds divisible.

    Args:
      pieces: micro-batches a step, times replicas that cut their own share of the batch.
    """
    analysis = hand_over_early(line.graph, analysis)
    emitter = Emitter(line, origin, analysis, pieces)
    before = frozenset(analysis.prologue_values)
    prologue = emitter.whole(analysis.prologue, analysis.prologue_values) if before else None
    alike = emitter.invariant(analysis.micro, before)
    given = before | frozenset(alike)
    return Accumulation(
        prologue=prologue,
        invariant=emitter.whole((), alike, before) if alike else None,
        micro=emitter.micro(analysis.micro, (*analysis.accumulated, *analysis.gathered), given),
        update=emitter.whole(analysis.update, line.graph.results, given),
        accumulated=analysis.accumulated,
        gathered=analysis.gathered,
        graph=line.graph,
        analysis=analysis,
        pieces=pieces,
    )
