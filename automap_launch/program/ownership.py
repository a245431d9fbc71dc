"""Which parameters an operation reads, and which optimizer state belongs to which parameter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from automap_launch.program.graph import Graph, Node
from automap_launch.program.parts import Parts
from automap_launch.program.union_find import UnionFind
from automap_launch.train_step import TrainStep


@dataclass(slots=True)
class Reads:
    """Argument indices of parameters: read as a whole, and read in slices that a loop picks one by one."""

    graph: Graph
    whole: set[int] = field(default_factory=set)
    sliced: set[int] = field(default_factory=set)

    def bytes_of(self, parameter: int) -> int:
        return self.graph.values[self.graph.arguments[parameter]].bytes


class Owners:
    """Follows parameters through operations that do not depend on the batch.

    Attributes:
      depends: for each value, bits of the parameters (by their place in `parts.parameters`) that it is made from
        without the batch.
      slices: values made of what a loop picks out of parameters.
    """

    def __init__(self, graph: Graph, step: TrainStep, parts: Parts) -> None:
        self.graph = graph
        self.parts = parts
        self.depends = [0] * len(graph.values)
        self.slices: set[int] = set()
        self._made_by = {v: node for node in graph.nodes for v in node.results}
        for bit, k in enumerate(parts.parameters):
            self.depends[graph.arguments[k]] = 1 << bit
        for k, node in enumerate(graph.nodes):
            if parts.parts[k] == "constant":
                made = 0
                for v in node.operands:
                    made |= self.depends[v]
                for v in node.results:
                    self.depends[v] |= made
                if self._walks(node) or not self.slices.isdisjoint(node.operands):
                    self.slices.update(node.results)
        self._connected = UnionFind(len(graph.values))
        self._homes: dict[int, list[int]] = {}
        self._state = self._optimizer_state(step)

    def bytes_of(self, parameter: int) -> int:
        return self.graph.values[self.graph.arguments[parameter]].bytes

    def state_bytes(self, parameter: int) -> int:
        """Bytes of the optimizer state that is updated with a parameter."""
        return self._state.get(parameter, 0)

    def updated_with(self, value: int) -> tuple[int, ...]:
        """Parameters that the update connects a value with: optimizer state with its parameter, gradients too."""
        return tuple(self._homes.get(self._connected.find(value), ()))

    def made_from(self, value: int) -> tuple[int, ...]:
        """Parameters that a value is made from without the batch."""
        bits, found = self.depends[value], []
        while bits:
            lowest = bits & -bits
            found.append(self.parts.parameters[lowest.bit_length() - 1])
            bits ^= lowest
        return tuple(found)

    def reads(self, nodes: Iterable[Node]) -> Reads:
        """Parameters that operations read."""
        found = Reads(self.graph)
        for node in nodes:
            for position, v in enumerate(node.operands):
                bits = self.depends[v]
                if not bits or node.name == "loop_carry" or v in self.slices:
                    continue
                into = found.sliced if position == 0 and self._walks(node) else found.whole
                into.update(self.made_from(v))
        return found

    def _walks(self, node: Node) -> bool:
        """Whether a loop, one that stands in no other, picks another element of a parameter in each iteration."""
        if node.name not in ("dynamic_slice", "gather") or not self.depends[node.operands[0]] or node.loop is None:
            return False
        if node.times == 1 or node.times != self.graph.trips.get(node.loop):
            return False
        shape = self.graph.shape(node.operands[0])
        return any(w == 1 < size for w, size in zip(node.attributes["slice_sizes"], shape, strict=True))

    def _optimizer_state(self, step: TrainStep) -> dict[int, int]:
        """Bytes by parameter: of what the update connects with it element by element, or by sums of its elements."""
        graph, sets = self.graph, self._connected
        large = [value.size > 1 for value in graph.values]
        for node, part in zip(graph.nodes, self.parts.parts, strict=True):
            if part == "update":
                for a, b in pairwise(v for v in (*node.operands, *node.results) if large[v] and self._tells(v)):
                    sets.union(a, b)
        state = {}
        for value, result in zip(graph.results, step.results, strict=True):
            if result.replaces is not None and large[value]:
                sets.union(value, graph.arguments[result.replaces])
                state[result.replaces] = graph.values[value].bytes
        homes = self._homes
        for k in self.parts.parameters:
            homes.setdefault(sets.find(graph.arguments[k]), []).append(k)
        sizes: dict[int, int] = dict.fromkeys(self.parts.parameters, 0)
        for k, size in state.items():
            owners = homes.get(sets.find(graph.arguments[k]), [])
            if k not in sizes:
                for owner in owners:
                    sizes[owner] += size // len(owners)
        return sizes

    def _tells(self, value: int) -> bool:
        """Whether sharing a value means belonging together: a table or a spread scalar that many read does not."""
        maker = self._made_by.get(value)
        return maker is None or maker.name not in ("constant", "iota", "broadcast_in_dim")
