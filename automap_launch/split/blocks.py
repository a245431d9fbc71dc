"""The stages that a plan's blocks ask for, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence

from automap_launch.program.batch_analysis import Block
from automap_launch.program.graph import Graph
from automap_launch.program.unroll import Line


def stages_wanted(line: Line, flat: Graph, blocks: Sequence[Block], spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """For operations of `line` that are in a block, the stage that the block is in.

    Args:
      line: the step, loops unrolled. flat: the step, loops once (`flatten` of the same module), which `blocks` name
        operations and loops of.
      blocks: of the program. spans: for each stage, its first and its last block, in order.

    Raises:
      ValueError: the spans do not cover the blocks one after the other.
    """
    if [b for first, last in spans for b in range(first, last + 1)] != list(range(len(blocks))):
        raise ValueError(f"the stages' blocks are {list(spans)}: they must cover 0 to {len(blocks) - 1} in order")
    of_site: dict[tuple[int, ...], int] = {}
    of_round: dict[tuple[int, int] | None, int] = {}
    for stage, (first, last) in enumerate(spans):
        for block in blocks[first : last + 1]:
            of_site.update((flat.nodes[k].site, stage) for k in block.ops if flat.nodes[k].site)
            of_round.update(((loop, trip), stage) for loop, start, stop in block.loops for trip in range(start, stop))
    wanted: dict[int, int] = {}
    for k, (node, trip) in enumerate(zip(line.graph.nodes, line.rounds, strict=True)):
        if trip in of_round:
            wanted[k] = of_round[trip]
        elif node.site in of_site:
            wanted[k] = of_site[node.site]
    return wanted
