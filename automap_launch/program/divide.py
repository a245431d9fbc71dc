"""Whether a step may be cut into micro-batches and stages. Asked when plans are made, and when one is built.

Two forms of the step have a say. With its loops once it is quick to analyse, and reasons speak of loops; but what is
cut is its straight line, in which some loops cannot be unrolled and both branches of a case run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from automap_launch.program.batch_analysis import BatchAnalysis, IndivisibleError, Refusal, State
from automap_launch.program.graph import Graph, where
from automap_launch.program.micro_batches import analyse_batch
from automap_launch.program.mlir import Module
from automap_launch.program.program import Program
from automap_launch.program.unroll import Line, unroll
from automap_launch.train_step import SourceLine


def why_undivided(program: Program, stages: int = 1, parts: int = 1) -> Refusal | None:
    """Why a step cannot run in several stages or micro-batches, or None when it can.

    Args:
      stages: 1 for a single stage that accumulates gradients.
      parts: equal parts of the batch, on devices of their own or one after the other (data x micro-batches).
    """
    analysis = program.batch_analysis
    if analysis is None:
        return Refusal("it was not analysed how the step runs in micro-batches", "opaque")
    if analysis.refusals:
        first, more = analysis.refusals[0], len(analysis.refusals) - 1
        also = f" (and {more} more reason{'s'[: more > 1]})" if more else ""
        return replace(first, reason=f"{first.reason}{also}")
    if analysis.one_stage and stages > 1:
        return analysis.one_stage
    if stages > max(1, len(program.blocks)):
        made = len(program.blocks)
        reason = f"stages are made of blocks, the forward part between places to cut, and this step has {made}"
        return Refusal(reason, "no batch")
    if analysis.max_micro_batches % parts:
        reason = (
            f"the batch would be cut into {parts} equal parts (data x micro-batches), which does not divide the "
            f"{analysis.max_micro_batches} that it can be cut into"
        )
        return Refusal(reason, "no batch")
    return None


def best_way(
    graph: Graph,
    module: Module,
    ways: Iterable[Mapping[int, State]],
    trained: Sequence[int],
    *,
    sources: Sequence[SourceLine | None] = (),
    local_statistics: bool = False,
) -> BatchAnalysis:
    """The analysis of the first way to cut the arguments that is not refused; of the first of all where each is.

    Args:
      graph: the step, loops once. module: that it was made from. ways: states of arguments that hold the batch.
      trained: see `arrays_of_state`. sources: see `unroll`. local_statistics: see `analyse_batch`.
    """
    line: Line | Refusal | None = None
    first: BatchAnalysis | None = None
    for batch in ways:
        found = analyse_batch(graph, batch, trained, local_statistics)
        if not found.refusals:
            line = line or _straight(module, sources)
            found = _as_in_line(found, line, trained)
        if not found.refusals:
            return found
        first = first or found
    return first or analyse_batch(graph, {}, trained, local_statistics)


def _straight(module: Module, sources: Sequence[SourceLine | None]) -> Line | Refusal:
    try:
        return unroll(module, sources)
    except IndivisibleError as error:
        return error.refusal


def _as_in_line(found: BatchAnalysis, line: Line | Refusal, trained: Sequence[int]) -> BatchAnalysis:
    """An analysis with what the straight line, which will be cut, has to say."""
    if isinstance(line, Refusal):
        return replace(found, refusals=(line,), max_micro_batches=1)
    # A plan allows statistics of micro-batches where the analysis has some.
    straight = analyse_batch(line.graph, found.arguments, trained, bool(found.local_values))
    return replace(
        found,
        refusals=straight.refusals,
        max_micro_batches=straight.max_micro_batches,
        one_stage=straight.one_stage,
    )


def arrays_of_state(graph: Graph, state: Iterable[int]) -> list[int]:
    """Of arguments that are state, those from which nothing may be computed before the step begins on the batch:
    parameters and optimizer state. Counters and PRNG keys are not among them."""
    values = [(k, graph.values[graph.arguments[k]]) for k in state]
    return [k for k, value in values if value.is_float and value.size > 1]


def calls_back(graph: Graph) -> Refusal:
    """Why a step that calls back into Python is not cut."""
    calls = (node for node in graph.nodes if "callback" in str(node.attributes.get("call_target_name", "")))
    source = next((node.source for node in calls if node.source), None)
    reason = (
        f"the step calls back into Python (jax.debug.print, io_callback){where(source)}, so it runs as a whole, in one "
        "stage and one micro-batch"
    )
    return Refusal(reason, "opaque", "custom_call", source)
