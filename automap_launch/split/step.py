"""A captured step, read and analysed for splitting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from automap_launch.program import batch_analysis
from automap_launch.program.batch_analysis import BatchAnalysis, IndivisibleError
from automap_launch.program.divide import arrays_of_state
from automap_launch.program.graph import Graph
from automap_launch.program.micro_batches import analyse_batch
from automap_launch.program.mlir import read_module
from automap_launch.program.unroll import Line, unroll
from automap_launch.split.destack import chunk_counts, destack
from automap_launch.split.mlir import Origin
from automap_launch.split.pipeline import assigned
from automap_launch.split.stages import Assignment, State
from automap_launch.train_step import Argument, Result, SourceLine


@dataclass(frozen=True)
class SplitStep:
    """A step that can be cut.

    Attributes:
      line: straight-line. origin: its module.
      analysis: how its values depend on the batch. state: its state among arguments and results of `line.graph`.
      chunks: for each argument of the captured step, how many arguments of `line.graph` stand for it, one after the
        other: one, or one for each stage that holds layers of state that is stacked over layers.
    """

    line: Line
    origin: Origin
    analysis: BatchAnalysis
    state: State
    chunks: tuple[int, ...]


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
      PlanError: the step cannot be cut exactly (`program.divide` says so in advance).
    """
    try:
        line = unroll(read_module(artifact), sources)
    except IndivisibleError as error:
        raise error.refusal.error from error
    graph = line.graph
    _slice_once(graph)
    replaced = [(r.replaces, k) for k, r in enumerate(results) if r.replaces is not None]
    state = State(
        arguments=tuple(graph.arguments[i] for i, _ in replaced), results=tuple(graph.results[k] for _, k in replaced)
    )
    trained = [i for i, a in enumerate(arguments) if a.role == "state"]
    analysis = _analysed(graph, batch, trained, local_statistics)
    return SplitStep(line, Origin(artifact), analysis, state, (1,) * len(arguments))


def by_stage(
    step: SplitStep,
    results: tuple[Result, ...],
    stages: int,
    wanted: Callable[[Line], Mapping[int, int]],
) -> SplitStep:
    """The step with state that is stacked over layers cut into each stage's layers, where it can be.

    Args:
      step: as read. results: of the step as captured. stages: how many. wanted: see `assign`, for a line of the step.
    """
    graph = step.line.graph
    analysis, assignment = assigned(step.line, step.analysis, step.state, stages, wanted(step.line))
    counts = chunk_counts(graph, analysis, step.state, assignment)
    while counts:
        found = _chunked(step, results, counts)
        apart = _lie_apart(found, assigned(found.line, found.analysis, found.state, stages, wanted(found.line))[1])
        together = {
            v
            for v, count, is_apart in zip(graph.arguments, found.chunks, apart, strict=True)
            if count > 1 and not is_apart
        }
        if not together:
            return found
        lengths = {graph.shape(v)[0] for v in together}
        counts = {v: count for v, count in counts.items() if graph.shape(v)[0] not in lengths}
    return step


def _slice_once(graph: Graph) -> None:
    """Lets all that reads one slice of an argument read one value: the forward part and the backward part of a loop
    over layers each take it for themselves, and it would be sent twice."""
    first: dict[tuple[object, ...], int] = {}
    same: dict[int, int] = {}
    arguments = set(graph.arguments)
    for node in graph.nodes:
        node.operands[:] = [same.get(v, v) for v in node.operands]
        if node.name == "slice" and node.operands[0] in arguments:
            window = (tuple(node.attributes[name]) for name in ("start_indices", "limit_indices", "strides"))
            value = first.setdefault((node.operands[0], *window), node.results[0])
            if value != node.results[0]:
                same[node.results[0]] = value


def _chunked(step: SplitStep, results: tuple[Result, ...], counts: Mapping[int, int]) -> SplitStep:
    replaced = {r.replaces: k for k, r in enumerate(results) if r.replaces is not None}
    results_of = {v: replaced[i] for i, v in enumerate(step.line.graph.arguments) if i in replaced}
    found = destack(step.line, step.state, counts, results_of)
    places = _places(found.chunks)
    ends = _places(tuple(found.chunks[r.replaces] if r.replaces is not None else 1 for r in results))
    new = found.line.graph
    state = State(
        arguments=tuple(new.arguments[p] for i in replaced for p in places[i]),
        results=tuple(new.results[p] for k in replaced.values() for p in ends[k]),
    )
    batch = {places[i][0]: cut for i, cut in step.analysis.arguments.items()}
    trained = [new.arguments.index(v) for v in state.arguments]
    return SplitStep(found.line, step.origin, _analysed(new, batch, trained, False), state, found.chunks)


def _lie_apart(step: SplitStep, assignment: Assignment) -> list[bool]:
    """For each argument of the captured step, whether its chunks lie on different stages."""
    owners = [assignment.owner.get(v, 0) for v in step.line.graph.arguments]
    return [len({owners[place] for place in places}) == len(places) for places in _places(step.chunks)]


def _places(chunks: tuple[int, ...]) -> list[range]:
    """For each argument as it was, the positions of its chunks."""
    ends = list(accumulate(chunks))
    return [range(end - count, end) for end, count in zip(ends, chunks, strict=True)]


def _analysed(
    graph: Graph, batch: Mapping[int, batch_analysis.State], state: Sequence[int], local_statistics: bool
) -> BatchAnalysis:
    analysis = analyse_batch(graph, batch, arrays_of_state(graph, state), local_statistics)
    if analysis.refusals:
        raise analysis.refusals[0].error
    return analysis
