"""A step as a straight line of operations: calls inlined, counted loops unrolled, cases computed on both sides.

The analyses of `program/` keep a loop's body once. To cut a step into parts (a stage gets some layers of a scan over
layers, a micro-batch a part of the examples) every operation must stand for itself, as it does here. What a loop
stacks up, layer by layer, and takes apart again in the backward pass is handed on directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from automap_launch.program.batch_analysis import IndivisibleError, Refusal, RefusalKind
from automap_launch.program.graph import Graph, Node, where
from automap_launch.program.mlir import Module, RawOp, Region
from automap_launch.program.program import Value
from automap_launch.program.scalars import COMPARE, FOLD
from automap_launch.train_step import SourceLine

# Above these a loop is not unrolled: the step could not be compiled in reasonable time.
MAX_TRIPS = 2048
MAX_NODES = 400_000


@dataclass(slots=True)
class Line:
    """A straight-line step.

    Attributes:
      graph: its nodes; no `loop_carry` or `branch` among them. A loop that cannot be unrolled is one `while` node,
        whose operands are its initial values and then what its regions read from outside (`free_values`).
      positions: for each node, the position of its operation in the module; None for a node that stands for none
        (`constant`, `slice`, `compare` and `select` made here, described by their attributes alone).
      rounds: for each node, the outermost unrolled loop that it comes from, by `Node.loop`'s numbers, and the round of
        it; None outside of loops.
    """

    graph: Graph
    positions: list[int | None] = field(default_factory=list)
    rounds: list[tuple[int, int] | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where operations stand: the user's line, positions of the calls and loops around them, and their round."""

    source: SourceLine | None = None
    path: tuple[int, ...] = ()
    round: tuple[int, int] | None = None


def unroll(module: Module, sources: Sequence[SourceLine | None] = ()) -> Line:
    """Unrolls `main`.

    Args:
      module: as `read_module` reads it. sources: line of its k-th operation; ignored if of another length.

    Raises:
      IndivisibleError: the step is too long to be unrolled, or computes something that must not run where a case does
        not choose it.
    """
    if len(sources) != module.operations:
        sources = ()
    line = Line(Graph())
    main = module.functions["main"]
    line.graph.arguments = [line.graph.add_value(kind) for kind in main.types]
    unroller = _Unroller(module.functions, sources, line)
    line.graph.results = unroller.run(main, dict(zip(main.arguments, line.graph.arguments, strict=True)), _Place())
    return prune(line)


def free_values(op: RawOp) -> list[int]:
    """Values of its function that an operation's regions read from outside it, in order of first use."""
    inner: set[int] = set()
    found: dict[int, None] = {}

    def visit(region: Region) -> None:
        inner.update(region.arguments)
        for item in region.ops:
            for value in item.operands:
                if value not in inner:
                    found.setdefault(value)
            for nested in item.regions:
                visit(nested)
            inner.update(item.results)
        for value in region.returns:
            if value not in inner:
                found.setdefault(value)

    for region in op.regions:
        visit(region)
    return list(found)


class _Unroller:
    def __init__(self, functions: dict[str, Region], sources: Sequence[SourceLine | None], line: Line) -> None:
        self.functions = functions
        self.sources = sources
        self.line = line
        self.graph = line.graph
        self.known: dict[int, int] = {}  # integer scalars
        self.maker: dict[int, Node] = {}
        self.loops = 0

    def run(self, region: Region, env: dict[int, int], place: _Place) -> list[int]:
        """Inlines a region; returns the values that it returns."""
        for op in region.ops:
            known = self.sources[op.position] if op.position < len(self.sources) else None
            here = replace(place, source=known) if known else place
            results = self.op(op, [env[v] for v in op.operands], env, here)
            env.update(zip(op.results, results, strict=True))
        return [env[v] for v in region.returns]

    def op(self, op: RawOp, operands: list[int], env: dict[int, int], place: _Place) -> list[int]:
        if op.name in ("call", "composite"):
            callee = self.functions[op.attributes["callee" if op.name == "call" else "decomposition"]]
            inner = replace(place, path=(*place.path, op.position))
            return self.run(callee, dict(zip(callee.arguments, operands, strict=True)), inner)
        if op.name == "while":
            return self.loop(op, operands, env, place)
        if op.name in ("case", "if"):
            return self.case(op, operands[0], env, place)
        if op.name == "optimization_barrier":
            # One node a value: what a barrier ties together may go to different parts.
            return [self.add(op, [v], [t], place)[0] for v, t in zip(operands, op.types, strict=True)]
        folded = self.fold(op, operands)
        if folded is not None:
            return [self.constant(op.types[0], folded, place)]
        if op.name == "dynamic_slice" and all(v in self.known for v in operands[1:]):
            return [self.slice(op, operands, place)]
        captured = [env[v] for v in free_values(op)]
        return self.add(op, [*operands, *captured], list(op.types), place)

    def add(self, op: RawOp, operands: list[int], types: list[Value], place: _Place) -> list[int]:
        node = Node(op.name, operands, [self.graph.add_value(t) for t in types], op.attributes, reducer=op.reducer,
                    source=place.source, site=(*place.path, op.position))  # fmt: skip
        self.append(node, op.position, place)
        if op.name == "constant" and isinstance(op.attributes.get("value"), int) and _is_integer(types[0]):
            self.known[node.results[0]] = _wrap(op.attributes["value"], types[0].dtype)
        if op.name == "optimization_barrier" and operands[0] in self.known:
            self.known[node.results[0]] = self.known[operands[0]]
        return node.results

    def make(self, name: str, operands: list[int], kind: Value, place: _Place, **attributes: object) -> int:
        """Adds a node that is described by its attributes alone."""
        node = Node(name, operands, [self.graph.add_value(kind)], attributes, source=place.source)
        self.append(node, None, place)
        return node.results[0]

    def append(self, node: Node, position: int | None, place: _Place) -> None:
        if len(self.graph.nodes) >= MAX_NODES:
            reason = (
                f"the step has more than {MAX_NODES:,} operations once its loops are unrolled{where(node.source)}: too "
                "many to cut it into parts"
            )
            raise IndivisibleError(Refusal(reason, "loop", node.name, node.source))
        self.graph.nodes.append(node)
        self.line.positions.append(position)
        self.line.rounds.append(place.round)
        for value in node.results:
            self.maker[value] = node

    def constant(self, kind: Value, value: int, place: _Place) -> int:
        result = self.make("constant", [], kind, place, value=value)
        self.known[result] = value
        return result

    def fold(self, op: RawOp, operands: list[int]) -> int | None:
        """The value of an integer scalar that follows from others that are known."""
        if len(op.types) != 1 or not _is_integer(op.types[0]) or not operands:
            return None
        if not all(v in self.known for v in operands):
            return None
        numbers = [self.known[v] for v in operands]
        if op.name == "compare":
            return int(COMPARE[op.attributes["comparison_direction"]](*numbers))
        rule = _FOLD.get(op.name)
        if op.name == "convert" and not _is_integer(self.graph.values[operands[0]]):
            return None
        return None if rule is None else _wrap(int(rule(*numbers)), op.types[0].dtype)

    def slice(self, op: RawOp, operands: list[int], place: _Place) -> int:
        """A dynamic slice at a place that is known; what was written at that very place before, where that is."""
        sizes = op.attributes["slice_sizes"]
        origin = operands[0]
        starts = self.starts(operands[1:], self.graph.shape(origin), sizes)
        while True:
            maker = self.maker.get(origin)
            if maker is None or maker.name != "dynamic_update_slice":
                break
            below, update, *indices = maker.operands
            if not all(v in self.known for v in indices):
                break
            shape = self.graph.shape(update)
            written = self.starts(indices, self.graph.shape(origin), shape)
            if written == starts and tuple(shape) == tuple(sizes):
                return update
            if not any(
                a + n <= b or b + m <= a for a, n, b, m in zip(starts, sizes, written, shape, strict=True)
            ):  # they overlap
                break
            origin = below
        limits = tuple(a + n for a, n in zip(starts, sizes, strict=True))
        return self.make(
            "slice", [origin], op.types[0], place,
            start_indices=starts, limit_indices=limits, strides=(1,) * len(starts),
        )  # fmt: skip

    def starts(self, indices: list[int], shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
        """Where a window begins: clamped into its operand, as StableHLO says."""
        return tuple(
            max(0, min(self.known[v], size - width)) for v, size, width in zip(indices, shape, sizes, strict=True)
        )

    def loop(self, op: RawOp, operands: list[int], env: dict[int, int], place: _Place) -> list[int]:
        condition, body = op.regions
        mark = len(self.graph.nodes)
        number = self.loops
        if place.round is None:
            self.loops += 1
        carried = list(operands)
        for trip in range(MAX_TRIPS + 1):
            inner = _Place(place.source, (*place.path, op.position), place.round or (number, trip))
            test = self.run(condition, {**env, **dict(zip(condition.arguments, carried, strict=True))}, inner)[0]
            if test not in self.known:
                break
            if not self.known[test]:
                return carried
            carried = self.run(body, {**env, **dict(zip(body.arguments, carried, strict=True))}, inner)
        del self.graph.nodes[mark:], self.line.positions[mark:], self.line.rounds[mark:]
        free = [env[v] for v in free_values(op)]
        return self.add(op, [*operands, *free], list(op.types), place)

    def case(self, op: RawOp, index: int, env: dict[int, int], place: _Place) -> list[int]:
        """Every branch is computed, and one chosen: the branches may lie in different parts of the step."""
        choice = self.known.get(index)
        # Of an `if` the second region is the one for false, 0.
        regions = op.regions[::-1] if op.name == "if" else op.regions
        if choice is not None:
            chosen = choice if 0 <= choice < len(regions) else len(regions) - 1
            return self.run(regions[chosen], dict(env), place)
        mark = len(self.graph.nodes)
        branches = [self.run(region, dict(env), place) for region in regions]
        _may_all_run(self.graph.nodes[mark:], [v for results in branches for v in results])
        kind = self.graph.values[index]
        results = branches[-1]
        for k in range(len(branches) - 2, -1, -1):
            number = self.constant(kind, k, place)
            here = self.make("compare", [index, number], Value((), "bool"), place, comparison_direction="EQ")
            results = [
                self.make("select", [here, a, b], self.graph.values[a], place)
                for a, b in zip(branches[k], results, strict=True)
            ]
        return results


_FOLD: dict[str, Callable[..., int]] = {
    **FOLD,
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "xor": lambda a, b: a ^ b,
    "convert": lambda a: a,
    "reshape": lambda a: a,
}


def _is_integer(kind: Value) -> bool:
    return not kind.shape and kind.dtype.startswith(("int", "uint", "bool"))


def _wrap(value: int, dtype: str) -> int:
    """`value` as an integer of `dtype`: two's complement, as the device computes."""
    if dtype == "bool":
        return int(bool(value))
    bits = int(dtype.lstrip("uint"))
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.startswith("int") and value >> (bits - 1) else value


def _may_all_run(nodes: Sequence[Node], results: Sequence[int]) -> None:
    """Checks that it does no harm to compute all branches of a case.

    Raises:
      IndivisibleError: a branch might never end where it is not chosen, or does something besides computing.
    """
    read = {*results, *(v for node in nodes for v in node.operands)}
    for node in nodes:
        kind: RefusalKind
        if node.name == "while":
            kind, what = "loop", "has a loop that runs as long as its data want"
        elif node.name == "custom_call" and read.isdisjoint(node.results):
            kind, what = "opaque", "calls something whose result it does not read"
        else:
            continue
        reason = (
            f"a branch of lax.cond or lax.switch {what}{where(node.source)}: in parts, the step would run it even "
            "where it is not chosen"
        )
        raise IndivisibleError(Refusal(reason, kind, node.name, node.source))


def prune(line: Line) -> Line:
    """Drops what no result depends on, but for calls that nobody reads (they are made for their effect), and numbers
    values anew."""
    graph = line.graph
    live = set(graph.results)
    kept = []
    for k in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[k]
        effect = node.name == "custom_call" and live.isdisjoint(node.results)
        if effect or any(v in live for v in node.results):
            live.update(node.operands)
            kept.append(k)
    kept.reverse()
    nodes = [graph.nodes[k] for k in kept]
    values = sorted({*graph.arguments, *graph.results, *(v for n in nodes for v in (*n.operands, *n.results))})
    number = {value: index for index, value in enumerate(values)}
    for node in nodes:
        node.operands = [number[v] for v in node.operands]
        node.results = [number[v] for v in node.results]
    return Line(
        Graph(
            values=[graph.values[v] for v in values],
            nodes=nodes,
            arguments=[number[v] for v in graph.arguments],
            results=[number[v] for v in graph.results],
            notes=graph.notes,
        ),
        [line.positions[k] for k in kept],
        [line.rounds[k] for k in kept],
    )
