"""Where a step's sums over the batch are handed from the micro-batches to the update."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from automap_launch.program.batch_analysis import FULL, BatchAnalysis
from automap_launch.program.graph import Graph
from automap_launch.program.program import Value

LOW_PRECISION = frozenset(("bfloat16", "float16"))


def accumulator_bytes(kind: Value) -> int:
    """What a partial sum takes while it is accumulated: low-precision floats are added up in float32."""
    return 4 * kind.size if is_low_precision(kind.dtype) else kind.bytes


def is_low_precision(dtype: str) -> bool:
    """Floats of 16 bits or fewer."""
    return dtype in LOW_PRECISION or dtype.startswith(("float8", "float4"))


def hand_over_early(graph: Graph, analysis: BatchAnalysis, once: Collection[int] = ()) -> BatchAnalysis:
    """Moves linear operations on partial sums from the micro-batches to the update where that needs less memory.

    An optimizer reads `(1 - b1) * g` and `g * g`: both products belong behind the sum over micro-batches, or two sums
    would be held for every gradient, and the first product be made for each micro-batch.

    Args:
      once: operations to move in any case (their operands are in different stages).
    """
    states = list(analysis.states)
    micro, update, sums = set(analysis.micro), set(analysis.update), set(analysis.accumulated)
    read_by: dict[int, set[int]] = {}
    for k in (*analysis.micro, *analysis.update):
        for value in graph.nodes[k].operands:
            read_by.setdefault(value, set()).add(k)
    forced = set(once)
    for k in sorted(micro, reverse=True):
        node = graph.nodes[k]
        parts = {v for v in node.operands if states[v].kind == "partial"}
        linear = parts and all(states[v].kind in ("partial", "none") for v in node.operands)
        late = all(
            states[v].kind == "partial" and v not in analysis.local_values and micro.isdisjoint(read_by.get(v, ()))
            for v in node.results
        )
        if not (linear and late) or k in analysis.own:
            continue
        more = sum(accumulator_bytes(graph.values[v]) for v in parts - sums)
        less = sum(accumulator_bytes(graph.values[v]) for v in node.results if v in sums)
        if more < less or k in forced:
            micro.remove(k)
            update.add(k)
            sums.difference_update(node.results)
            sums.update(parts)
            for v in node.results:
                states[v] = FULL
    return replace(
        analysis,
        states=tuple(states),
        micro=tuple(sorted(micro)),
        update=tuple(sorted(update)),
        accumulated=tuple(sorted(sums)),
    )
