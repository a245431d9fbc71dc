"""State that is stacked over layers, cut into the layers of each stage.

A scan over layers keeps each parameter of all layers in one array. In a pipeline every stage gets its own layers of
it: the argument becomes one argument a stage, and so does what the update computes of it, element by element.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap_launch.program import stacks
from automap_launch.program.batch_analysis import BatchAnalysis
from automap_launch.program.graph import Graph, Node
from automap_launch.program.program import Value
from automap_launch.program.rules.elementwise import ELEMENTWISE
from automap_launch.program.unroll import Line, prune
from automap_launch.split.stages import Assignment, State, one_layer

_COMBINED = {"add": "add", "maximum": "maximum", "minimum": "minimum"}
_BY_CHUNK = ELEMENTWISE | {"optimization_barrier"}


@dataclass(frozen=True)
class Destacked:
    """A step whose stacked state is in chunks.

    Attributes:
      line: the step. chunks: for each argument of the step as it was, into how many arguments it is cut (1: it is
        not); results that replace them are cut alike.
    """

    line: Line
    chunks: tuple[int, ...]


def chunk_counts(graph: Graph, analysis: BatchAnalysis, state: State, assignment: Assignment) -> dict[int, int]:
    """Into how many equal chunks to cut each stacked state argument whose layers lie on several stages
    (`program/stacks.py`). Stages that read layers of another's chunk are sent them once a step."""
    stages = {
        argument: np.array([[layers[layer] for layer in range(len(layers))]])
        for argument, layers in _stages_of_layers(graph, analysis, state, assignment).items()
        if set(layers) == set(range(graph.shape(argument)[0]))
    }
    counts = zip(stages, stacks.chunk_counts(list(stages.values())), strict=True)
    return {argument: int(count[0]) for argument, count in counts if count[0] > 1}


def destack(line: Line, state: State, counts: Mapping[int, int], results_of: Mapping[int, int]) -> Destacked:
    """Cuts state into chunks.

    Args:
      counts: into how many chunks each stacked argument is cut, from `chunk_counts`; optimizer state that is updated
        with one is cut like it.
      results_of: for each state argument, the position of the result that replaces it.
    """
    alike = _moved_together(line.graph, state, counts)
    refused: set[int] = set()
    while True:
        chosen = {v: n for v, n in alike.items() if v not in refused}
        rewriter = _Rewriter(line, chosen, results_of)
        failed = rewriter.run()
        if not failed:
            return Destacked(prune(rewriter.line), tuple(chosen.get(v, 1) for v in line.graph.arguments))
        refused |= failed


def _stages_of_layers(
    graph: Graph, analysis: BatchAnalysis, state: State, assignment: Assignment
) -> dict[int, dict[int, int]]:
    """For each stacked state argument, the first stage whose forward part reads each layer."""
    uses = [0] * len(graph.values)
    for k, (phase, stage) in assignment.place.items():
        if phase == "forward":
            for v in graph.nodes[k].operands:
                uses[v] |= 1 << stage
    for node in reversed(graph.nodes):
        if node.results and analysis.states[node.results[0]].kind == "none":
            mask = 0
            for v in node.results:
                mask |= uses[v]
            for v in node.operands:
                uses[v] |= mask
    found: dict[int, dict[int, int]] = defaultdict(dict)
    arguments = set(state.arguments)
    for node in graph.nodes:
        if node.name == "slice" and node.operands[0] in arguments and uses[node.results[0]]:
            layer = one_layer(graph, node)
            if layer is not None:
                mask = uses[node.results[0]]
                found[node.operands[0]][layer] = (mask & -mask).bit_length() - 1
    return found


def _moved_together(graph: Graph, state: State, counts: Mapping[int, int]) -> dict[int, int]:
    """`counts`, and state that meets those arguments element by element, also reduced within each layer."""
    count_of: dict[int, int] = {}
    for v, n in counts.items():
        count_of[v] = n
    by_shape = {graph.shape(v)[0]: n for v, n in counts.items()}
    changed = True
    while changed:
        changed = False
        for node in graph.nodes:
            values = [v for v in (*node.operands, *node.results) if graph.shape(v)]
            linked = node.name in ELEMENTWISE or _keeps_layers(graph, node)
            if not linked or not any(v in count_of for v in values):
                continue
            for v in values:
                if v not in count_of and graph.shape(v)[0] in by_shape:
                    count_of[v] = by_shape[graph.shape(v)[0]]
                    changed = True
    return {v: count_of[v] for v in state.arguments if v in count_of}


def _keeps_layers(graph: Graph, node: Node) -> bool:
    """Whether an operation of one tensor leaves its leading dim where it is, and rearranges or reduces the rest."""
    if node.name == "broadcast_in_dim":
        first = graph.shape(node.operands[0]) and node.attributes["broadcast_dimensions"][0] == 0
    elif node.name == "transpose":
        first = node.attributes["permutation"][0] == 0
    elif node.name == "reduce":
        first = len(node.operands) == 2 and 0 not in node.attributes["dimensions"]
    else:
        first = node.name == "reshape"
    return bool(first) and graph.shape(node.operands[0])[:1] == graph.shape(node.results[0])[:1] != ()


class _Rewriter:
    """Builds the new line. Every old value has a new one (`whole`), or one a chunk (`pieces`), or both."""

    def __init__(self, line: Line, counts: Mapping[int, int], results_of: Mapping[int, int]) -> None:
        self.old = line.graph
        self.old_positions = line.positions
        self.old_rounds = line.rounds
        self.counts = counts
        self.results_of = results_of
        self.line = Line(Graph(notes=line.graph.notes))
        self.new = self.line.graph
        self.whole: dict[int, int] = {}
        self.pieces: dict[int, list[int]] = {}
        self.makers = {v: k for k, node in enumerate(line.graph.nodes) for v in node.results}
        self.by_length = {self.old.shape(v)[0]: n for v, n in counts.items()}
        self.known: dict[int, int] = {
            node.results[0]: node.attributes["value"]
            for node in line.graph.nodes
            if node.name == "constant" and isinstance(node.attributes.get("value"), int)
        }

    def run(self) -> set[int]:
        """Rewrites all; returns the stacked arguments whose new values are not made chunk by chunk."""
        for v in self.old.arguments:
            if v in self.counts:
                self.pieces[v] = [self.new.add_value(self.piece_kind(v, self.counts[v])) for _ in range(self.counts[v])]
                self.new.arguments.extend(self.pieces[v])
            else:
                self.whole[v] = self.new.add_value(self.old.values[v])
                self.new.arguments.append(self.whole[v])
        for k, node in enumerate(self.old.nodes):
            if not self.by_chunk(k, node):
                operands = [self.get(v) for v in node.operands]
                self.whole.update(zip(node.results, self.add(node, operands, k), strict=True))
        chunked = {self.results_of[v]: v for v in self.counts}
        failed = {v for place, v in chunked.items() if self.old.results[place] not in self.pieces}
        if not failed:
            for place, v in enumerate(self.old.results):
                if place in chunked:
                    self.new.results.extend(self.pieces[v])
                else:
                    self.new.results.append(self.get(v))
        return failed

    def piece_kind(self, value: int, count: int) -> Value:
        kind = self.old.values[value]
        return Value((kind.shape[0] // count, *kind.shape[1:]), kind.dtype)

    def add(self, node: Node, operands: Sequence[int], k: int, kinds: Sequence[Value] | None = None) -> list[int]:
        results = [self.new.add_value(t) for t in kinds or [self.old.values[v] for v in node.results]]
        self.new.nodes.append(
            Node(
                node.name,
                list(operands),
                results,
                node.attributes,
                reducer=node.reducer,
                source=node.source,
                site=node.site,
            )
        )
        self.line.positions.append(self.old_positions[k])
        self.line.rounds.append(self.old_rounds[k])
        return results

    def make(self, name: str, operands: Sequence[int], kind: Value, like: Node, **attributes: object) -> int:
        result = self.new.add_value(kind)
        self.new.nodes.append(Node(name, list(operands), [result], attributes, source=like.source))
        self.line.positions.append(None)
        self.line.rounds.append(None)
        return result

    def get(self, value: int) -> int:
        """The whole of a value, put together from its chunks where need be."""
        if value not in self.whole:
            like = self.old.nodes[self.makers[value]] if value in self.makers else self.old.nodes[0]
            self.whole[value] = self.make("concatenate", self.pieces[value], self.old.values[value], like, dimension=0)
        return self.whole[value]

    def chunks(self, value: int, count: int, like: Node) -> list[int]:
        """A value in chunks."""
        if value in self.pieces:
            return self.pieces[value]
        kind = self.piece_kind(value, count)
        k = self.makers.get(value)
        node = None if k is None else self.old.nodes[k]
        made: list[int] = []
        if k is not None and node is not None:
            if node.name == "constant" and node.attributes["value"] in ("zero", "splat"):
                made = self.add(node, (), k, [kind]) * count
            elif node.name == "broadcast_in_dim" and 0 not in node.attributes["broadcast_dimensions"]:
                # One a chunk: each belongs to the update of its stage.
                operand = self.get(node.operands[0])
                made = [self.add(node, [operand], k, [kind])[0] for _ in range(count)]
        if not made:
            width = kind.shape[0]
            made = [
                self.make(
                    "slice", [self.get(value)], kind, like,
                    start_indices=(c * width, *(0,) * (len(kind.shape) - 1)),
                    limit_indices=((c + 1) * width, *kind.shape[1:]),
                    strides=(1,) * len(kind.shape),
                )
                for c in range(count)
            ]  # fmt: skip
        self.pieces[value] = made
        return made

    def by_chunk(self, k: int, node: Node) -> bool:
        """Does an operation chunk by chunk where its operands are in chunks and it allows it."""
        stacked = [v for v in node.operands if v in self.pieces]
        if node.name == "dynamic_update_slice":
            return self.write(k, node)
        if not stacked:
            return False
        count = len(self.pieces[stacked[0]])
        result = node.results[0]
        if node.name == "slice":
            return self.read(node)
        if node.name != "reduce" and _keeps_layers(self.old, node):
            (chunks,), kind = [self.pieces[v] for v in stacked], self.piece_kind(result, count)
            self.pieces[result] = [self.add(node, [chunk], k, [kind])[0] for chunk in chunks]
            return True
        if node.name in _BY_CHUNK and len(node.results) == 1 and node.name != "bitcast_convert":
            parts = [self.chunks(v, count, node) if self.old.shape(v) else [self.get(v)] * count for v in node.operands]
            kinds = [self.piece_kind(result, count)]
            self.pieces[result] = [self.add(node, [p[c] for p in parts], k, kinds)[0] for c in range(count)]
            return True
        if node.name == "reduce" and len(node.operands) == 2 and node.reducer in _COMBINED:
            return self.reduce(k, node, count)
        return False

    def read(self, node: Node) -> bool:
        """One layer: from the chunk that has it."""
        layer = one_layer(self.old, node)
        if layer is None:
            return False
        chunks = self.pieces[node.operands[0]]
        width = self.old.shape(node.operands[0])[0] // len(chunks)
        kind = self.old.values[node.results[0]]
        self.whole[node.results[0]] = self.make(
            "slice", [chunks[layer // width]], kind, node,
            start_indices=(layer % width, *(0,) * (len(kind.shape) - 1)),
            limit_indices=(layer % width + 1, *kind.shape[1:]),
            strides=(1,) * len(kind.shape),
        )  # fmt: skip
        return True

    def write(self, k: int, node: Node) -> bool:
        """One layer's gradient into the stack of all: into the chunk that it belongs to."""
        stack, update, *indices = node.operands
        shape, part = self.old.shape(stack), self.old.shape(update)
        known = all(v in self.known for v in indices)
        if not (shape and shape[0] in self.by_length and known and part[0] == 1 and part[1:] == shape[1:]):
            return False
        count = self.by_length[shape[0]]
        chunks = list(self.chunks(stack, count, node))
        width = shape[0] // count
        layer = max(0, min(self.known[indices[0]], shape[0] - 1))
        index = self.make("constant", (), self.old.values[indices[0]], node, value=layer % width)
        operands = [chunks[layer // width], self.get(update), index, *(self.get(v) for v in indices[1:])]
        chunks[layer // width] = self.add(node, operands, k, [self.piece_kind(stack, count)])[0]
        self.pieces[node.results[0]] = chunks
        return True

    def reduce(self, k: int, node: Node, count: int) -> bool:
        value, start = node.operands
        if value not in self.pieces or not self.is_neutral(node, start):
            return False
        result = self.old.values[node.results[0]]
        over_layers = 0 in node.attributes["dimensions"]
        kinds = [result if over_layers else self.piece_kind(node.results[0], count)]
        made = [self.add(node, [chunk, self.get(start)], k, kinds)[0] for chunk in self.pieces[value]]
        if not over_layers:
            self.pieces[node.results[0]] = made
            return True
        total = made[0]
        for other in made[1:]:
            total = self.make(_COMBINED[str(node.reducer)], [total, other], result, node)
        self.whole[node.results[0]] = total
        return True

    def is_neutral(self, node: Node, start: int) -> bool:
        """Whether a reduction may begin with this value once a chunk: zero for a sum, anything for an extremum."""
        maker = self.makers.get(start)
        if node.reducer != "add":
            return True
        return maker is not None and self.old.nodes[maker].attributes.get("value") in (0, "zero")
