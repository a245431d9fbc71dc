"""New modules from operations of a step: the whole of them, or for one micro-batch with smaller shapes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from automap_launch.program.batch_analysis import BatchAnalysis, Share, State
from automap_launch.program.graph import Graph, Node
from automap_launch.program.program import Value
from automap_launch.program.rules.elementwise import ELEMENTWISE
from automap_launch.program.state_rules.moving import reshaped
from automap_launch.program.unroll import Line
from automap_launch.split.mlir import Builder, Origin

# Which micro-batch: an int32 scalar argument of a module, in the place of a value id.
INDEX: Final = -1

# Made anew wherever they are read: cheaper than to hand on what they make.
_CHEAP = frozenset(("broadcast_in_dim", "constant", "iota", "reshape", "transpose", "slice"))

# Elementwise, but an element of the result is not made of one element of each operand.
_NOT_BY_ELEMENT = frozenset(("bitcast_convert",))


@dataclass(frozen=True)
class Section:
    """A module made of some of a step's operations.

    Attributes:
      artifact: portable StableHLO. Equal sections have equal bytes.
      inputs: value ids of the arguments, in order; `INDEX` among them.
      outputs: value ids of the results, in order.
    """

    artifact: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Emitter:
    """Makes sections of one step.

    Args:
      line: the step. origin: its module. analysis: how its values depend on the batch.
      pieces: into how many micro-batches the batch is cut (times replicas, where each cuts its own share).
    """

    def __init__(self, line: Line, origin: Origin, analysis: BatchAnalysis, pieces: int) -> None:
        self.line = line
        self.origin = origin
        self.analysis = analysis
        self.pieces = pieces
        self.made_by: dict[int, int] = {v: k for k, node in enumerate(line.graph.nodes) for v in node.results}

    def whole(self, nodes: Collection[int], outputs: Sequence[int], given: Collection[int] = ()) -> Section:
        """Operations on the whole batch, once a step. What they read is an argument when it is in `given`, is an
        argument of the step, or depends on the batch; else it is computed here."""
        return self._section(nodes, outputs, given, micro=False)

    def micro(self, nodes: Collection[int], outputs: Sequence[int], given: Collection[int] = ()) -> Section:
        """Operations for one micro-batch; see `whole`. Batch values, arguments among them, have their part's shape."""
        return self._section(nodes, outputs, given, micro=True)

    def invariant(self, nodes: Collection[int], given: Collection[int] = ()) -> list[int]:
        """Values that the micro-batches would all compute alike, to be made once a step: what the operations read that
        does not depend on the batch and is more than a constant or another view of an argument."""
        walk = _Walk(self, frozenset(nodes), frozenset(given), micro=True, builder=_Nothing())
        for k in sorted(nodes):
            walk.build(k)
        found: dict[int, None] = {}
        pending, seen = list(reversed(walk.demanded)), set()
        while pending:
            value = pending.pop()
            maker = self.made_by.get(value)
            if value in seen or maker is None or value in given:
                continue
            seen.add(value)
            if self.line.graph.nodes[maker].name in _CHEAP:
                pending.extend(self.line.graph.nodes[maker].operands)
            else:
                found.setdefault(value)
        return sorted(found)

    def _section(self, nodes: Collection[int], outputs: Sequence[int], given: Collection[int], micro: bool) -> Section:
        with Builder(self.origin) as builder:
            walk = _Walk(self, frozenset(nodes), frozenset(given), micro, builder)
            for k in sorted(nodes):
                walk.build(k)
            results = [walk.get(v) for v in outputs]
            return Section(builder.finish(results), tuple(walk.inputs), tuple(outputs))


class _Walk:
    """One section in the making."""

    def __init__(
        self, emitter: Emitter, nodes: frozenset[int], given: frozenset[int], micro: bool, builder: Any
    ) -> None:
        self.graph: Graph = emitter.line.graph
        self.positions = emitter.line.positions
        self.analysis = emitter.analysis
        self.pieces = emitter.pieces
        self.made_by = emitter.made_by
        self.origin = emitter.origin
        self.nodes, self.given, self.cut, self.builder = nodes, given, micro, builder
        self.inputs: dict[int, None] = {}
        self.values: dict[int, Any] = {}
        self.cuts: dict[tuple[int, Share], Any] = {}
        self.locals: dict[int, Any] = {}
        self.demanded: list[int] = []  # values without batch state that are read whole

    # Values

    def kind(self, value: int) -> Value:
        """Shape of a value in this section."""
        state = self.analysis.states[value]
        if self.cut and state.kind == "batch":
            return _part_of(self.graph.values[value], state.dim, self.pieces)
        return self.graph.values[value]

    def argument(self, key: int, kind: Value) -> Any:
        if key not in self.values:
            self.values[key] = self.builder.argument(kind)
            self.inputs[key] = None
        return self.values[key]

    def get(self, value: int) -> Any:
        """A value as this section has it: made before, an argument, or made now if it depends on no batch."""
        if value in self.values:
            return self.values[value]
        maker = self.made_by.get(value)
        independent = self.analysis.states[value].kind == "none"
        if independent:
            self.demanded.append(value)
        if maker is None or value in self.given or not independent:
            return self.argument(value, self.kind(value))
        pending = [maker]
        while pending:
            node = self.graph.nodes[pending[-1]]
            missing = [
                v for v in node.operands if v not in self.values and v not in self.given and v in self.made_by
            ]  # fmt: skip
            if missing:
                pending.extend(dict.fromkeys(self.made_by[v] for v in missing))
                continue
            k = pending.pop()
            if node.results[0] not in self.values:
                operands = [
                    self.values[v] if v in self.values else self.argument(v, self.kind(v)) for v in node.operands
                ]
                self.keep(k, self.clone(k, operands, [self.graph.values[v] for v in node.results]))
        return self.values[value]

    def index(self) -> Any:
        return self.argument(INDEX, Value((), "int32"))

    def part(self, value: int, share: Share) -> Any:
        """The micro-batch's part of a value without batch state. Where the value is made element by element, its
        makers are cut instead: a dropout mask is drawn for the micro-batch alone, from the whole batch's counters."""
        key = (value, share)
        if key not in self.cuts:
            made = self.part_at_the_source(value, share)
            self.cuts[key] = self.part_of_the_whole(value, share) if made is None else made
        return self.cuts[key]

    def part_at_the_source(self, value: int, share: Share) -> Any | None:
        maker = self.made_by.get(value)
        if maker is None or value in self.given:
            return None
        node, position = self.graph.nodes[maker], self.positions[maker]
        kind = _part_of(self.graph.values[value], share.dim, self.pieces)
        if node.name == "constant":
            if position is not None and self.origin.splat(position) is not None:
                return self.builder.splat(position, kind)
            return None
        if node.name == "broadcast_in_dim":
            dims = node.attributes["broadcast_dimensions"]
            source = node.operands[0]
            operand: Any
            if share.dim in dims and self.graph.shape(source)[dims.index(share.dim)] != 1:
                operand = self.part(source, Share(dims.index(share.dim), share.outer, share.first))
            else:
                operand = self.get(source)
            return self.clone(maker, [operand], [kind])[0]
        if node.name == "iota":
            return self.counted(node, kind, share)
        if node.name in ELEMENTWISE - _NOT_BY_ELEMENT and len(node.results) == 1:
            operands = [self.part(v, share) if self.graph.shape(v) else self.get(v) for v in node.operands]
            return self.clone(maker, operands, [kind])[0]
        if node.name == "transpose":
            inner = Share(node.attributes["permutation"][share.dim], share.outer, share.first)
            return self.clone(maker, [self.part(node.operands[0], inner)], [kind])[0]
        if node.name == "reshape":
            source = node.operands[0]
            before = reshaped(self.graph.shape(value), self.graph.shape(source), State("batch", share.dim, share.outer))
            if before is None or self.graph.shape(source)[before.dim] % (before.outer * self.pieces):
                return None
            inner = Share(before.dim, before.outer, share.first)
            return self.clone(maker, [self.part(source, inner)], [kind])[0]
        return None

    def counted(self, node: Node, kind: Value, share: Share) -> Any | None:
        dim = node.attributes["iota_dimension"]
        if dim == share.dim and share.outer > 1:
            return None
        counted = self.builder.iota(kind, dim)
        if dim != share.dim or share.first:
            return counted
        rows = self.builder.number(Value((), "int32"), kind.shape[dim])
        start = self.builder.convert(self.builder.multiply(self.index(), rows), Value((), kind.dtype))
        return self.builder.add(counted, self.builder.broadcast(start, kind))

    def part_of_the_whole(self, value: int, share: Share) -> Any:
        local = value in self.analysis.local_values
        whole, kind = self.statistic(value) if local else self.get(value), self.graph.values[value]
        outer = math.prod(kind.shape[: share.dim]) * share.outer
        inner = kind.size // (outer * self.pieces)
        blocks = self.builder.reshape(whole, Value((outer, self.pieces, inner), kind.dtype))
        zero = self.builder.number(Value((), "int32"), 0)
        piece = self.builder.dynamic_slice(
            blocks, [zero, zero if share.first else self.index(), zero], (outer, 1, inner)
        )
        return self.builder.reshape(piece, _part_of(kind, share.dim, self.pieces))

    def statistic(self, value: int) -> Any:
        """What stands in a micro-batch for a sum over the whole batch: its own share, as often as there are parts."""
        if value not in self.locals:
            self.locals[value] = self.builder.multiply(self.get(value), self.parts(self.graph.values[value]))
        return self.locals[value]

    def parts(self, kind: Value) -> Any:
        """The number of parts, repeated over a whole tensor."""
        number = self.builder.convert(self.builder.number(Value((), "int32"), self.pieces), Value((), kind.dtype))
        return self.builder.broadcast(number, kind)

    # Operations

    def build(self, k: int) -> None:
        node = self.graph.nodes[k]
        local = k in self.analysis.own or any(self.analysis.states[v].kind in ("batch", "local") for v in node.results)
        local = local and self.cut
        operands = []
        for place, value in enumerate(node.operands):
            share = self.analysis.shares.get((k, place)) if self.cut else None
            if share is not None and self.analysis.states[value].kind == "none":
                operands.append(self.part(value, share))
            elif share is not None and self.analysis.states[value].kind in ("local", "partial"):
                operands.append(self.part_of_the_whole(value, share))  # a statistic, spread over the examples
            elif local and value in self.analysis.local_values:
                operands.append(self.statistic(value))
            else:
                operands.append(self.get(value))
        made = self.clone(k, operands, [self.kind(v) for v in node.results], self.changed(node))
        if self.cut and k in self.analysis.averaged:
            made = [self.builder.divide(made[0], self.parts(self.kind(node.results[0])))]
        self.keep(k, made)

    def keep(self, k: int, made: Iterable[Any]) -> None:
        self.values.update(zip(self.graph.nodes[k].results, made, strict=True))

    def changed(self, node: Node) -> dict[str, Sequence[int]]:
        """Attributes that tell sizes along the batch dim, as they are for a part of it."""
        if not self.cut:
            return {}
        operand = self.analysis.states[node.operands[0]] if node.operands else None
        if operand is None or operand.kind != "batch":
            return {}
        full = self.graph.shape(node.operands[0])[operand.dim]
        if node.name == "slice":
            starts, limits = (list(node.attributes[n]) for n in ("start_indices", "limit_indices"))
            starts[operand.dim] //= self.pieces
            limits[operand.dim] //= self.pieces
            return {"start_indices": starts, "limit_indices": limits}
        if node.name == "pad":  # by whole blocks of the batch
            padding: dict[str, Sequence[int]] = {}
            for name in ("edge_padding_low", "edge_padding_high"):
                amounts = list(node.attributes[name])
                amounts[operand.dim] //= self.pieces
                padding[name] = amounts
            return padding
        if node.name in ("dynamic_slice", "gather"):
            sizes = list(node.attributes["slice_sizes"])
            if sizes[operand.dim] == full and full != 1:
                sizes[operand.dim] //= self.pieces
                return {"slice_sizes": sizes}
        return {}

    def clone(
        self, k: int, operands: list[Any], kinds: list[Value], attributes: Mapping[str, Sequence[int]] | None = None
    ) -> list[Any]:
        position, node = self.positions[k], self.graph.nodes[k]
        if node.name == "optimization_barrier":
            return [self.builder.barrier(operands[0])]  # the module's own may hold back several values at once
        if node.name == "constant" and position is not None and self.origin.splat(position) is not None:
            return [self.builder.splat(position, kinds[0])]
        if position is not None:
            return list(self.builder.clone(position, operands, kinds, attributes))
        merged = {**node.attributes, **(attributes or {})}
        if node.name == "constant":
            return [self.builder.number(kinds[0], merged["value"])]
        if node.name == "compare":
            return [self.builder.equal(*operands)]
        if node.name == "select":
            return [self.builder.select(*operands)]
        if node.name in ("add", "maximum", "minimum"):
            return [getattr(self.builder, node.name)(*operands)]
        if node.name == "concatenate":
            return [self.builder.concatenate(operands, merged["dimension"])]
        if node.name == "slice":
            return [
                self.builder.slice(operands[0], merged["start_indices"], merged["limit_indices"], merged["strides"])
            ]
        raise ValueError(f"no way to make {node.name}, which stands for no operation of the step's module")


class _Nothing:
    """A builder that builds nothing: to see what a section would read."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: name

    def clone(self, _: int, __: Any, kinds: Sequence[Value], ___: Any = None) -> list[Any]:
        return ["clone"] * len(kinds)


def _part_of(kind: Value, dim: int, pieces: int) -> Value:
    return Value((*kind.shape[:dim], kind.shape[dim] // pieces, *kind.shape[dim + 1 :]), kind.dtype)
