"""Candidate pipeline cuts: the forward part as a row of blocks between which few bytes cross."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from automap_launch.program.batch_analysis import Block, Homes, Shares
from automap_launch.program.batch_states import independent_of
from automap_launch.program.cuts import choose_cuts
from automap_launch.program.flops import flops_of
from automap_launch.program.forward_order import Forward, Piece
from automap_launch.program.graph import Graph
from automap_launch.program.ownership import Owners
from automap_launch.program.parts import Parts

MAX_BLOCKS = 32
_NEW_RESIDUAL = 10  # weight of a byte that crosses within a layer that is recomputed


def find_blocks(
    graph: Graph, parts: Parts, owners: Owners, batch: Iterable[int], max_blocks: int = MAX_BLOCKS
) -> tuple[tuple[Block, ...], Homes]:
    """Blocks in order, and what belongs to each; none where the step has no forward part.

    Args:
      graph, parts: the step. owners: which state belongs to which parameter. batch: indices of batch arguments.
      max_blocks: neighbours are joined until there are no more than this.
    """
    forward = Forward(graph, parts, owners, independent_of(graph, [graph.arguments[k] for k in batch]))
    pieces = forward.pieces()
    if not pieces:
        return (), Homes()
    cuts = choose_cuts([piece.flops for piece in pieces], forward.crossing(_weights(graph, parts)), max_blocks)
    cuts = _even_in_loops(cuts, pieces, [unit.iterations for unit in forward.units])
    runs = [pieces[a:b] for a, b in pairwise([0, *cuts, len(pieces)])]
    sent = forward.crossing(lambda v: graph.values[v].bytes)
    contents = _Contents(graph, parts, owners, forward, runs)
    return contents.blocks([sent[cut] for cut in cuts] + [0]), contents.homes()


def _weights(graph: Graph, parts: Parts) -> Callable[[int], int]:
    """What it costs that a value crosses a cut: its bytes; more in a step that recomputes layers in the backward part,
    if the value is not one that it keeps for that: the cut would tear a layer apart."""
    backward = [node for node, part in zip(graph.nodes, parts.parts, strict=True) if part == "backward"]
    if not any(node.name == "optimization_barrier" for node in backward):
        return lambda v: graph.values[v].bytes
    kept = {v for node in backward for v in node.operands}
    return lambda v: graph.values[v].bytes * (1 if v in kept else _NEW_RESIDUAL)


def _even_in_loops(cuts: Sequence[int], pieces: Sequence[Piece], iterations: Sequence[int]) -> list[int]:
    """Cuts with those between the iterations of a loop moved so that each of its blocks has as many, where about as
    many blocks remain: stages with equal numbers of layers hold their layers' state themselves (`stacks.py`).

    Args:
      iterations: of each unit.
    """
    found = set(cuts)
    for first, piece in enumerate(pieces):
        count = iterations[piece.unit]
        if piece.iteration or count == 1:
            continue
        inside = [cut for cut in cuts if first < cut < first + count]
        parts = max(n for n in range(1, len(inside) + 2) if count % n == 0)
        if 2 * parts > len(inside):
            found.difference_update(inside)
            found.update(first + k * count // parts for k in range(1, parts))
    return sorted(found)


class _Contents:
    """What belongs to each block."""

    def __init__(
        self, graph: Graph, parts: Parts, owners: Owners, forward: Forward, runs: Sequence[Sequence[Piece]]
    ) -> None:
        self.graph = graph
        self.parts = parts
        self.owners = owners
        self.forward = forward
        self.runs = runs
        self.shares: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))  # unit -> block -> share
        for b, run in enumerate(runs):
            for piece in run:
                self.shares[piece.unit][b] += 1 / forward.units[piece.unit].iterations
        self.owned: dict[int, dict[int, float]] = defaultdict(dict)  # parameter -> block -> share of it
        self.backward_unit = self._backward_units()
        self._loop_units = {unit.loop: u for u, unit in enumerate(forward.units) if unit.loop is not None}

    def blocks(self, boundaries: Sequence[int]) -> tuple[Block, ...]:
        backward = self._backward()
        residuals = self._residuals()
        reads: list[set[int]] = [set() for _ in self.runs]
        sizes: list[float] = [0] * len(self.runs)
        states: list[float] = [0] * len(self.runs)
        users: Counter[int] = Counter()
        whole: set[int] = set()
        owned = self.owned
        for u in self.forward.order:
            unit = self.forward.units[u]
            found = self.owners.reads(self.graph.nodes[k] for k in self.forward.with_constants(unit))
            for b, share in self.shares[u].items():
                reads[b] |= found.whole | found.sliced
                for parameter in found.sliced if unit.iterations > 1 else ():
                    owned[parameter][b] = owned[parameter].get(b, 0) + share
                for parameter in found.whole if unit.iterations > 1 else found.whole | found.sliced:
                    whole.add(parameter)
                    owned[parameter].setdefault(b, 0.0)
        for parameter, places in owned.items():
            if parameter in whole:
                owned[parameter] = {min(places): 1.0}
            for b, share in owned[parameter].items():
                sizes[b] += share * self.owners.bytes_of(parameter)
                states[b] += share * self.owners.state_bytes(parameter)
        for parameters in reads:
            users.update(parameters)
        return tuple(
            Block(
                ops=tuple(
                    sorted(
                        k
                        for piece in run
                        if self.forward.units[piece.unit].iterations == 1
                        for k in self.forward.units[piece.unit].nodes
                    )
                ),
                loops=self._loops(run),
                flops=sum(piece.flops for piece in run),
                backward_flops=round(backward[b]),
                parameters=tuple(sorted(reads[b])),
                parameter_bytes=round(sizes[b]),
                state_bytes=round(states[b]),
                residual_bytes=round(residuals[b]),
                boundary_bytes=boundaries[b],
                tied=tuple(sorted(k for k in reads[b] if users[k] > 1 and k in whole)),
            )
            for b, run in enumerate(self.runs)
        )

    def _loops(self, run: Sequence[Piece]) -> tuple[tuple[int, int, int], ...]:
        spans: dict[int, list[int]] = defaultdict(list)
        for piece in run:
            loop = self.forward.units[piece.unit].loop
            if loop is not None and self.forward.units[piece.unit].iterations > 1:
                spans[loop].append(piece.iteration)
        return tuple((loop, min(places), max(places) + 1) for loop, places in spans.items())

    def homes(self) -> Homes:
        """After `blocks`, which finds where each parameter is."""
        first_reader: dict[int, int] = {}
        for u in reversed(self.forward.order):
            for k in self.forward.with_constants(self.forward.units[u]):
                first_reader.update(dict.fromkeys(self.graph.nodes[k].operands, u))
        arguments: list[Shares] = []
        for k, v in enumerate(self.graph.arguments):
            parameters = (k,) if k in self.owned else self.owners.updated_with(v)
            if not parameters and v in first_reader:
                arguments.append(((min(self.shares[first_reader[v]]), 1.0),))
            else:
                arguments.append(self._where(parameters))
        return Homes(tuple(self._home(k) for k in range(len(self.graph.nodes))), tuple(arguments))

    def _home(self, k: int) -> Shares:
        node, part = self.graph.nodes[k], self.parts.parts[k]
        unit = self.forward.unit_of.get(k, self.backward_unit.get(k))
        if unit is None and part == "constant" and node.loop is not None:
            unit = self._loop_units.get(node.loop)
        if unit is not None:
            return tuple(sorted(self.shares[unit].items()))
        if part == "constant":
            return self._where({p for v in node.results for p in self.owners.made_from(v)})
        for v in (*node.results, *node.operands):
            parameters = self.owners.updated_with(v)
            if parameters:
                return self._where(parameters)
        return ((0, 1.0),)

    def _where(self, parameters: Iterable[int]) -> Shares:
        """The blocks of parameters, by their bytes."""
        shares: dict[int, float] = defaultdict(float)
        sizes = {p: max(1, self.owners.bytes_of(p)) for p in parameters if p in self.owned}
        for p, size in sizes.items():
            for b, share in self.owned[p].items():
                shares[b] += share * size / sum(sizes.values())
        return tuple(sorted(shares.items())) or ((0, 1.0),)

    def _backward(self) -> list[float]:
        """Backward flops of each block."""
        flops = [0.0] * len(self.runs)
        for k, unit in self.backward_unit.items():
            node = self.graph.nodes[k]
            for b, share in self.shares[unit].items():
                flops[b] += share * flops_of(self.graph, node) * node.times
        return flops

    def _backward_units(self) -> dict[int, int]:
        """By backward operation, a unit of the forward part.

        An operation belongs to the latest unit that has the forward values it reads, else to the latest that reads its
        parameters, but to none later than its backward operands do; a backward loop as a whole to the loop whose
        stacks it takes apart.
        """
        place = {u: p for p, u in enumerate(self.forward.order)}
        home: dict[int, int] = {}  # by node: the unit
        loops: dict[int, Counter[int]] = defaultdict(Counter)
        nodes = [
            k
            for k, (node, part) in enumerate(zip(self.graph.nodes, self.parts.parts, strict=True))
            if part == "backward" and not all(self.forward.alike[v] for v in node.results)
        ]
        readers = self._readers()
        having = self._having(place)
        for k in nodes:
            node = self.graph.nodes[k]
            bounds = [home[m] for v in node.operands if (m := self.forward.maker.get(v)) in home]
            bound = min((place[u] for u in bounds), default=len(place))
            units = [u for v in node.operands if (u := self._unit(v)) is not None]
            if node.name == "optimization_barrier" and units:  # begins to recompute a layer: where that begins
                places = [min((p for p in having[node.operands[0]] if p != place[units[0]]), default=place[units[0]])]
            elif units:
                kept = [having[v] for v in node.operands if self._unit(v) is not None]
                latest = min(max((p for p in places if p <= bound), default=bound) for places in kept)
                places = [min(bound, max(latest, *(place[u] for u in units)))]
            else:
                reading = [place[u] for v in node.operands for u in readers.get(self.owners.depends[v], ())]
                places = [p for p in reading if p <= bound]
            if places or bounds:
                home[k] = self.forward.order[max(places, default=bound)]
            if node.loop is not None:
                for u in units:
                    loops[node.loop][u] += self.forward.units[u].iterations > 1
        for k in nodes:
            home.setdefault(k, self.forward.order[-1])
            loop = self.graph.nodes[k].loop
            taken_apart = loops[loop].most_common(1) if loop is not None else []
            if taken_apart and taken_apart[0][1]:
                home[k] = taken_apart[0][0]
        return home

    def _readers(self) -> dict[int, set[int]]:
        """By parameters (bits), the units that read them."""
        readers: dict[int, set[int]] = defaultdict(set)
        for k, u in self.forward.unit_of.items():
            for v in self.graph.nodes[k].operands:
                if self.owners.depends[v]:
                    readers[self.owners.depends[v]].add(u)
        return readers

    def _having(self, place: dict[int, int]) -> dict[int, set[int]]:
        """By forward value, the places of the unit that makes it and of those that read it."""
        having: dict[int, set[int]] = defaultdict(set)
        for k, u in self.forward.unit_of.items():
            for v in (*self.graph.nodes[k].operands, *self.graph.nodes[k].results):
                having[v].add(place[u])
        return having

    def _residuals(self) -> list[float]:
        sizes = [0.0] * len(self.runs)
        kept: dict[int, int] = {}
        for k, part in enumerate(self.parts.parts):
            if part == "backward":
                for v in self.graph.nodes[k].operands:
                    unit = self._unit(v)
                    if unit is not None:
                        kept[v] = unit
        for v, unit in kept.items():
            for b, share in self.shares[unit].items():
                sizes[b] += share * self.graph.values[v].bytes
        return sizes

    def _unit(self, value: int) -> int | None:
        """The unit that makes a forward value; None for one that needs no parameters or no batch: it is remade."""
        maker = self.forward.maker.get(value)
        unit = None if maker is None else self.forward.unit_of.get(maker)
        if unit is None or self.forward.alike[value] or not self.forward.from_parameters[unit]:
            return None
        return unit
