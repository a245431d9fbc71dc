"""The forward part in the order in which a pipeline can cut it.

Operations are ordered by the latest time at which each could end, so that what is made early for late use (masks, the
decoder's first operations beside an encoder) crosses no cut. A loop over layers, which reads another slice of stacked
parameters in every iteration, may be cut between iterations; any other loop is kept together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from automap_launch.program.flops import flops_of
from automap_launch.program.graph import Graph
from automap_launch.program.ownership import Owners
from automap_launch.program.parts import Parts


@dataclass(slots=True)
class Unit:
    """What is not reordered: one operation, or all forward operations of a loop.

    Attributes:
      iterations: of a loop that may be cut, else 1.
    """

    nodes: list[int] = field(default_factory=list)
    loop: int | None = None
    iterations: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit, or one iteration of it."""

    unit: int
    iteration: int
    flops: int


class Forward:
    """The forward part in order."""

    def __init__(self, graph: Graph, parts: Parts, owners: Owners, alike: list[bool]) -> None:
        self.graph = graph
        self.alike = alike  # for each value, whether it is the same for every batch
        self.parts = parts
        self.owners = owners
        self.units: list[Unit] = []
        self.unit_of: dict[int, int] = {}  # by node
        self.maker = {v: k for k, node in enumerate(graph.nodes) for v in node.results}
        self._collect()
        self.flops = [sum(flops_of(graph, graph.nodes[k]) * graph.nodes[k].times for k in u.nodes) for u in self.units]
        self.order = self._order()

    def _collect(self) -> None:
        loops: dict[int, Unit] = {}
        for k, node in enumerate(self.graph.nodes):
            if self.parts.parts[k] == "forward":
                if node.loop is None:
                    self.units.append(Unit([k]))
                elif node.loop not in loops:
                    loops[node.loop] = Unit(loop=node.loop)
                    self.units.append(loops[node.loop])
        for k, node in enumerate(self.graph.nodes):
            if node.loop in loops and (self.parts.parts[k] == "forward" or node.name == "loop_carry"):
                loops[node.loop].nodes.append(k)
        for u, unit in enumerate(self.units):
            self.unit_of.update(dict.fromkeys(unit.nodes, u))
            if unit.loop is not None and self._walks_parameters(unit):
                unit.iterations = self.graph.trips[unit.loop]

    def _walks_parameters(self, unit: Unit) -> bool:
        """Whether most bytes of parameters that a loop reads are read in slices, another one in each iteration."""
        reads = self.owners.reads(self.graph.nodes[k] for k in self.with_constants(unit))
        sliced = sum(reads.bytes_of(k) for k in reads.sliced)
        return sliced > 0 and sliced >= sum(reads.bytes_of(k) for k in reads.whole)

    def with_constants(self, unit: Unit) -> list[int]:
        """A loop's forward operations, and those in it that depend on parameters alone."""
        if unit.loop is None:
            return unit.nodes
        return [
            k
            for k, node in enumerate(self.graph.nodes)
            if node.loop == unit.loop and self.parts.parts[k] in ("forward", "constant")
        ]

    def _order(self) -> list[int]:
        trained = [False] * len(self.units)  # needs parameters
        sources: list[set[int]] = [set() for _ in self.units]
        for k, u in self.unit_of.items():
            for v in self.graph.nodes[k].operands:
                maker = self.maker.get(v)
                other = None if maker is None else self.unit_of.get(maker)
                if other is not None and other != u:
                    sources[u].add(other)
                elif other is None and self.owners.depends[v]:
                    trained[u] = True
        ends = [0] * len(self.units)  # counted back from the end of the forward part
        for u in range(len(self.units) - 1, -1, -1):
            for s in sources[u]:
                ends[s] = max(ends[s], ends[u] + max(1, self.flops[u]))
        for u in range(len(self.units)):
            trained[u] = trained[u] or any(trained[s] for s in sources[u])
        self.from_parameters = trained
        return sorted(range(len(self.units)), key=lambda u: (-ends[u], u))

    def pieces(self) -> list[Piece]:
        """All pieces in order."""
        return [
            Piece(u, k, self.flops[u] // self.units[u].iterations)
            for u in self.order
            for k in range(self.units[u].iterations)
        ]

    def crossing(self, weight: Callable[[int], int]) -> list[int]:
        """Before each piece, the weights (bytes, say) of all values that a cut there would send on."""
        place = {u: p for p, u in enumerate(self.order)}
        changes = [0] * (len(self.order) + 1)
        stacks = [p for p, u in enumerate(self.order) if self.units[u].iterations > 1]
        inside: dict[int, int] = defaultdict(int)  # by loop unit: between its iterations
        for v, made, last, initial in self._alive(place):
            size = weight(v)
            changes[made + 1] += size
            changes[last + 1] -= size
            for p in stacks[bisect_right(stacks, made) : bisect_right(stacks, last)]:
                if not (p == last and initial):
                    inside[self.order[p]] += size
        for u, unit in enumerate(self.units):
            if unit.iterations > 1:
                inside[u] += sum(self.graph.values[v].bytes for v in self._carried(unit))
        before = []
        for crossing, u in zip(accumulate(changes), self.order, strict=False):
            before += [crossing, *[inside[u]] * (self.units[u].iterations - 1)]
        return before

    def _alive(self, place: dict[int, int]) -> list[tuple[int, int, int, bool]]:
        """(value, place made, last place read, whether it is there but the initial value of what a loop carries), of
        values that need parameters and the batch: all others a later stage makes for itself."""
        last: dict[int, int] = {}
        initial: dict[int, bool] = {}
        for k, u in self.unit_of.items():
            node = self.graph.nodes[k]
            for v in node.operands:
                maker = self.maker.get(v)
                made_in = None if maker is None else self.unit_of.get(maker)
                if made_in is None or made_in == u or self.alike[v] or not self.from_parameters[made_in]:
                    continue
                only = node.name == "loop_carry"
                if place[u] > last.get(v, -1):
                    last[v], initial[v] = place[u], only
                elif place[u] == last[v]:
                    initial[v] = initial[v] and only
        return [(v, place[self.unit_of[self.maker[v]]], end, initial[v]) for v, end in last.items()]

    def _carried(self, unit: Unit) -> list[int]:
        """What an iteration hands on to the next, but for stacks of what each one made."""
        ends = dict(self.graph.back_edges)
        out = []
        for k in unit.nodes:
            node = self.graph.nodes[k]
            if node.name != "loop_carry" or self.parts.parts[k] != "forward":
                continue
            handed_on = self.maker.get(ends[node.results[0]])
            if handed_on is not None and self.graph.nodes[handed_on].name != "dynamic_update_slice":
                out.append(node.results[0])
        return out
