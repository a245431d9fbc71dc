"""From functions and regions to one flat list: calls inlined, each loop's body once, every branch of a case.

A loop's body stands once, with `times` its trip count. What a loop carries unchanged is the value from outside;
every other carried value is a `loop_carry` node, whose back edge the analyses follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from automap_launch.errors import CaptureError
from automap_launch.program.graph import Graph, Node, where
from automap_launch.program.mlir import Module, RawOp, Region
from automap_launch.program.program import Value
from automap_launch.program.scalars import Scalars
from automap_launch.train_step import SourceLine

# Made anew for every use: a constant mask shared by two places must not tie their dims.
_FREE = ("constant", "iota")


def flatten(module: Module, sources: Sequence[SourceLine | None] = ()) -> Graph:
    """The graph of `main`. `sources`: line of the k-th operation of the module; not used if it is of another length,
    as lines of a module with other operations would name the wrong ones.

    Raises:
      CaptureError: the module has no function `main`, or a function calls itself.
    """
    functions = module.functions
    if len(sources) != module.operations:
        sources = ()
    if "main" not in functions:
        raise CaptureError(f"the step's module has no function main, only {', '.join(sorted(functions)) or 'none'}")
    graph = Graph()
    main = functions["main"]
    graph.arguments = [graph.add_value(kind) for kind in main.types]
    flattener = _Flattener(functions, sources, graph)
    graph.results = flattener.run(main, dict(zip(main.arguments, graph.arguments, strict=True)), _Place())
    return prune(graph)


class _Place:
    """Where the operations being inlined stand: in a loop or not, called from which line, within which functions."""

    def __init__(
        self,
        loop: int | None = None,
        source: SourceLine | None = None,
        calls: tuple[str, ...] = (),
        path: tuple[int, ...] = (),
    ) -> None:
        self.loop = loop
        self.path = path
        self.in_loop = loop is not None
        self.source = source
        self.calls = calls


class _Flattener:
    def __init__(self, functions: dict[str, Region], sources: Sequence[SourceLine | None], graph: Graph) -> None:
        self.functions = functions
        self.sources = sources
        self.graph = graph
        self.scalars = Scalars()
        self.free: dict[int, Node] = {}  # value made by a free node that has a use already -> that node
        self.loops = 0
        self.unused: set[int] = set()  # values of free nodes without a use so far

    def run(self, region: Region, env: dict[int, int], place: _Place) -> list[int]:
        """Inlines a region; returns the values that it returns."""
        for op in region.ops:
            source = self.source(op) or place.source
            operands = [env[v] for v in op.operands]
            if op.name in ("call", "composite"):
                results = self.call(op, operands, place, source)
            elif op.name == "while":
                results = self.loop(op, operands, env, place, source)
            elif op.name in ("case", "if"):
                results = self.case(op, operands, env, place, source)
            elif op.name == "optimization_barrier":
                # One node a value: what a barrier ties together has no dims in common.
                results = [
                    self.add(op, [v], [kind], place, source)[0] for v, kind in zip(operands, op.types, strict=True)
                ]
            else:
                captured = [env[v] for region in op.regions for v in region.free()]
                results = self.add(op, operands, list(op.types), place, source, captured=captured)
            env.update(zip(op.results, results, strict=True))
        return [env[v] for v in region.returns]

    def source(self, op: RawOp) -> SourceLine | None:
        return self.sources[op.position] if op.position < len(self.sources) else None

    def add(
        self,
        op: RawOp,
        operands: list[int],
        types: list[Value],
        place: _Place,
        source: SourceLine | None,
        *,
        captured: Sequence[int] = (),
    ) -> list[int]:
        node = Node(
            name=op.name,
            operands=[self.use(v) for v in operands],
            results=[self.graph.add_value(kind) for kind in types],
            attributes=op.attributes,
            in_loop=place.in_loop,
            reducer=op.reducer,
            source=source,
            captured=[self.use(v) for v in captured],
            loop=place.loop,
            site=(*place.path, op.position),
        )
        self.graph.nodes.append(node)
        self.scalars.follow(node, self.graph.values)
        spread = op.name == "broadcast_in_dim" and not self.graph.shape(operands[0])
        if len(types) == 1 and types[0].shape and (op.name in _FREE or spread):
            self.free[node.results[0]] = node
            self.unused.add(node.results[0])
        return node.results

    def use(self, value: int) -> int:
        """The value itself at its first use; a copy of the free node that makes it at every other."""
        if value not in self.free:
            return value
        if value in self.unused:
            self.unused.remove(value)
            return value
        made = self.free[value]
        copy = Node(
            made.name, list(made.operands), [self.graph.add_value(self.graph.values[value])], made.attributes,
            in_loop=made.in_loop, source=made.source, loop=made.loop, site=made.site,
        )  # fmt: skip
        self.graph.nodes.append(copy)
        return copy.results[0]

    def call(self, op: RawOp, operands: list[int], place: _Place, source: SourceLine | None) -> list[int]:
        name = op.attributes["callee" if op.name == "call" else "decomposition"]
        if name in place.calls:
            raise CaptureError(f"the step's function {name} calls itself{where(source)}: it cannot be inlined")
        callee = self.functions[name]
        inner = _Place(place.loop, source, (*place.calls, name), (*place.path, op.position))
        return self.run(callee, dict(zip(callee.arguments, operands, strict=True)), inner)

    def loop(
        self, op: RawOp, operands: list[int], env: dict[int, int], place: _Place, source: SourceLine | None
    ) -> list[int]:
        condition, body = op.regions
        number = place.loop
        if number is None:
            number = self.loops
            self.loops += 1
        inner = _Place(number, source, place.calls, (*place.path, op.position))
        changes = [body.returns[k] != body.arguments[k] for k in range(len(operands))]
        carried = [
            self.carry(value, place, number, source) if change else value
            for value, change in zip(operands, changes, strict=True)
        ]
        first = len(self.graph.nodes)
        test = self.run(condition, {**env, **dict(zip(condition.arguments, carried, strict=True))}, inner)[0]
        results = self.run(body, {**env, **dict(zip(body.arguments, carried, strict=True))}, inner)
        ends = list(zip(operands, results, strict=True))
        times = self.scalars.trips(test, dict(zip(carried, ends, strict=True)))
        if times == 0:
            return operands
        if times is None:
            self.graph.note(
                f"loop{where(source)}: how often it runs depends on data, so that its cost is counted once; "
                "a loop of fixed length (lax.scan, lax.fori_loop with constant bounds) is counted exactly"
            )
            kept = [v for pair in zip(carried, results, changes, strict=True) if pair[2] for v in pair[:2]]
            self.graph.tests.append((test, tuple(dict.fromkeys(kept))))
        else:
            for node in self.graph.nodes[first:]:
                node.times *= times
            if place.loop is None:
                self.graph.trips[number] = times
        self.graph.back_edges.extend(
            (value, result) for value, result, change in zip(carried, results, changes, strict=True) if change
        )
        return results

    def carry(self, initial: int, place: _Place, loop: int, source: SourceLine | None) -> int:
        result = self.graph.add_value(self.graph.values[initial])
        self.graph.nodes.append(
            Node("loop_carry", [self.use(initial)], [result], {}, in_loop=place.in_loop, source=source, loop=loop)
        )
        self.scalars.start(result)
        return result

    def case(
        self, op: RawOp, operands: list[int], env: dict[int, int], place: _Place, source: SourceLine | None
    ) -> list[int]:
        branches = [self.run(region, dict(env), place) for region in op.regions]
        results = []
        for k, kind in enumerate(op.types):
            result = self.graph.add_value(kind)
            chosen = [self.use(branch[k]) for branch in branches]
            self.graph.nodes.append(
                Node(
                    "branch",
                    [operands[0], *chosen],
                    [result],
                    {},
                    in_loop=place.in_loop,
                    source=source,
                    loop=place.loop,
                )
            )
            results.append(result)
        return results


def prune(graph: Graph) -> Graph:
    """Drops what no result depends on (a custom call stays: it may have an effect), and numbers values anew."""
    live = set(graph.results)
    handed_on = dict(graph.back_edges)
    kept = [False] * len(graph.nodes)
    changed = True
    while changed:
        changed = False
        for index in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[index]
            if kept[index] or not (node.name == "custom_call" or any(v in live for v in node.results)):
                continue
            kept[index] = True
            live.update(node.operands)
            live.update(node.captured)
            if node.name == "loop_carry" and handed_on[node.results[0]] not in live:
                live.add(handed_on[node.results[0]])
                changed = True
        for test, passed in graph.tests:
            if test not in live and not live.isdisjoint(passed):
                live.add(test)
                changed = True
    nodes = [node for node, keep in zip(graph.nodes, kept, strict=True) if keep]
    values = sorted(
        {*graph.arguments, *graph.results, *(v for n in nodes for v in (*n.operands, *n.captured, *n.results))}
    )
    number = {value: index for index, value in enumerate(values)}
    for node in nodes:
        node.operands = [number[v] for v in node.operands]
        node.captured = [number[v] for v in node.captured]
        node.results = [number[v] for v in node.results]
    return Graph(
        values=[graph.values[v] for v in values],
        nodes=nodes,
        arguments=[number[v] for v in graph.arguments],
        results=[number[v] for v in graph.results],
        back_edges=[(number[a], number[b]) for a, b in graph.back_edges if a in number and b in number],
        trips=graph.trips,
        tests=[
            (number[test], tuple(number[v] for v in passed if v in number))
            for test, passed in graph.tests
            if test in number
        ],
        notes=graph.notes,
    )
