"""A step cut for a pipeline: for each stage what it computes once before, for each micro-batch, and once after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from automap_launch.program.batch_analysis import BatchAnalysis
from automap_launch.program.graph import Graph
from automap_launch.program.unroll import Line
from automap_launch.split.boundary import hand_over_early
from automap_launch.split.emit import INDEX, Emitter, Section
from automap_launch.split.mlir import Origin
from automap_launch.split.stages import Assignment, State, assign, one_layer

# What a stage does. `hold` and `prepare` once a step before the micro-batches, `reduce` and `update` once after them.
PartKind = Literal["hold", "prepare", "forward", "backward", "weight", "reduce", "update"]
MICRO: tuple[PartKind, ...] = ("forward", "backward", "weight")


@dataclass(frozen=True, order=True)
class PartId:
    """`round`: of an update, how many times before it stages have heard from each other."""

    kind: PartKind
    stage: int
    round: int = 0


@dataclass(frozen=True)
class Pipeline:
    """A step in parts.

    Attributes:
      stages: how many.
      sections: of each part that computes something. `hold`, which has the stage's state, and `reduce`, which adds up
        its sums, have none.
      makers: for each value that an update reads or the step returns, the part that makes it. State arguments are
        made by the `hold` part of their owner; sums over micro-batches by a `reduce` part.
      flows: for each value that is handed on within a micro-batch, the part that makes it.
      cargo: {(part, stage): values}: what a part sends to another stage.
      edges: (part, part): the second reads what the first makes.
      owner: for each state argument (value id), the stage that holds it.
      like: see `Assignment`.
      layers: for each layer of stacked state that is read, by value id, the state argument that it is a layer of.
      sums: accumulated values by the stage that makes them; gathered: as well.
      graph, analysis, pieces: see `Accumulation`.
      shares: of the forward flops, by stage.
    """

    stages: int
    sections: Mapping[PartId, Section]
    makers: Mapping[int, PartId]
    flows: Mapping[int, PartId]
    cargo: Mapping[tuple[PartId, int], tuple[int, ...]]
    edges: tuple[tuple[PartId, PartId], ...]
    owner: Mapping[int, int]
    like: Mapping[int, int]
    layers: Mapping[int, int]
    sums: Mapping[int, tuple[int, ...]]
    gathered: Mapping[int, tuple[int, ...]]
    graph: Graph
    analysis: BatchAnalysis
    pieces: int
    shares: tuple[float, ...]


def cut(
    line: Line,
    origin: Origin,
    analysis: BatchAnalysis,
    *,
    state: State,
    stages: int,
    pieces: int,
    wanted: Mapping[int, int],
    split_backward: bool = False,
) -> Pipeline:
    """Cuts a step that `analysis` finds divisible.

    Args:
      state: the step's state among arguments and results.
      pieces: into how many equal parts the batch is cut: micro-batches times replicas.
      wanted: see `assign`.
      split_backward: put what no other stage waits for into parts of their own (`weight`).

    Raises:
      PlanError: it takes statistics of each micro-batch by itself (`BatchAnalysis.one_stage`).
    """
    if analysis.one_stage:
        raise analysis.one_stage.error
    analysis, assignment = assigned(line, analysis, state, stages, wanted)
    emitter = Emitter(line, origin, analysis, pieces)
    return _Cutter(emitter, state, assignment, split_backward).cut()


def assigned(
    line: Line, analysis: BatchAnalysis, state: State, stages: int, wanted: Mapping[int, int]
) -> tuple[BatchAnalysis, Assignment]:
    """Stages of all operations, and the analysis with its sums handed over where the stages allow it."""
    analysis = hand_over_early(line.graph, analysis)
    assignment = assign(line.graph, analysis, state, stages, wanted)
    if assignment.joined:
        analysis = hand_over_early(line.graph, analysis, assignment.joined)
        assignment = assign(line.graph, analysis, state, stages, wanted)
    return analysis, assignment


class _Cutter:
    def __init__(self, emitter: Emitter, state: State, assignment: Assignment, split_backward: bool) -> None:
        self.graph = emitter.line.graph
        self.analysis = emitter.analysis
        self.pieces = emitter.pieces
        self.emitter = emitter
        self.state = state
        self.assignment = assignment
        self.before = frozenset(self.analysis.prologue_values)
        self.layers = {
            node.results[0]: node.operands[0]
            for node in self.graph.nodes
            if node.name == "slice"
            and node.operands[0] in assignment.owner
            and one_layer(self.graph, node) is not None
            and self.graph.values[node.results[0]].size > 1  # no word of a key
        }
        self.part_of = self._part_of_nodes()
        if split_backward:
            self._split_backward()

    def cut(self) -> Pipeline:
        nodes: dict[PartId, list[int]] = defaultdict(list)
        for k, part in self.part_of.items():
            nodes[part].append(k)
        makers = self._makers()
        returned = self._returned(makers, nodes)
        readers: dict[int, set[PartId]] = defaultdict(set)
        for k, part in self.part_of.items():
            for v in self.graph.nodes[k].operands:
                readers[v].add(part)
        sections: dict[PartId, Section] = {}
        wanted: dict[int, set[int]] = defaultdict(set)  # by stage, what is made before the micro-batches
        for stage in range(self.assignment.stages):
            borrowed = self._borrowed(stage)
            prepared = self._prepared(nodes, stage, borrowed)
            for part in sorted(p for p in nodes if p.stage == stage):
                outputs = self._outputs(part, nodes[part], readers, returned)
                if part.kind in MICRO:
                    sections[part] = self.emitter.micro(nodes[part], outputs, self.before | prepared | borrowed)
                else:
                    sections[part] = self.emitter.whole(nodes[part], outputs, self.before | prepared)
            own = [section for part, section in sections.items() if part.stage == stage]
            wanted[stage].update(prepared, (v for section in own for v in section.inputs if v in self.before))
            self._lend(makers, wanted, own, borrowed)
        for stage in reversed(range(self.assignment.stages)):  # a layer is lent to later stages than its own
            if wanted[stage]:
                part, borrowed = PartId("prepare", stage), self._borrowed(stage)
                inner = self._prologue_for(wanted[stage])
                given = (self.before | borrowed) - wanted[stage]
                sections[part] = self.emitter.whole(inner, sorted(wanted[stage]), given)
                self._lend(makers, wanted, [sections[part]], borrowed)
        return self._joined(sections, makers)

    def _borrowed(self, stage: int) -> frozenset[int]:
        """Layers of state that an earlier stage holds."""
        return frozenset(v for v, stack in self.layers.items() if self.assignment.owner[stack] < stage)

    def _lend(
        self,
        makers: dict[int, PartId],
        wanted: dict[int, set[int]],
        sections: Iterable[Section],
        borrowed: frozenset[int],
    ) -> None:
        """Has the layers that sections of a stage read made by the stages that hold them."""
        for v in borrowed.intersection(v for section in sections for v in section.inputs):
            owner = self.assignment.owner[self.layers[v]]
            makers[v] = PartId("prepare", owner)
            wanted[owner].add(v)

    def _part_of_nodes(self) -> dict[int, PartId]:
        last = self.assignment.stages - 1
        parts = {}
        for k, (phase, stage) in self.assignment.place.items():
            if phase == "update":
                parts[k] = PartId("update", stage, self.assignment.rounds[k])
            else:
                # The last stage goes from forward to backward at once.
                parts[k] = PartId("backward" if stage == last else phase, stage)
        return parts

    def _split_backward(self) -> None:
        awaited: set[int] = set()
        for k, part in self.part_of.items():
            for v in self.graph.nodes[k].operands:
                maker = self.part_of.get(self.emitter.made_by.get(v, -1))
                if maker is not None and maker != part:
                    awaited.add(v)
        awaited.difference_update(self.analysis.accumulated)
        awaited.update(self.analysis.gathered)
        for k in sorted(self.part_of, reverse=True):
            part, node = self.part_of[k], self.graph.nodes[k]
            if part.kind != "backward":
                continue
            if awaited.isdisjoint(node.results):
                self.part_of[k] = PartId("weight", part.stage)
            else:
                awaited.update(node.operands)

    def _makers(self) -> dict[int, PartId]:
        makers = {v: part for k, part in self.part_of.items() for v in self.graph.nodes[k].results}
        for v in (*self.analysis.accumulated, *self.analysis.gathered):
            if v in makers:
                makers[v] = PartId("reduce", makers[v].stage)
        for v in self.state.arguments:
            makers[v] = PartId("hold", self.assignment.owner[v])
        return makers

    def _returned(self, makers: dict[int, PartId], nodes: dict[PartId, list[int]]) -> dict[PartId, list[int]]:
        """Results that depend on no batch (a counter, the next random key): made in the update of their owner."""
        home = {r: self.assignment.owner[a] for a, r in zip(self.state.arguments, self.state.results, strict=True)}
        returned: dict[PartId, list[int]] = defaultdict(list)
        for v in dict.fromkeys(self.graph.results):
            if v not in makers and v in self.emitter.made_by:
                part = makers[v] = PartId("update", home.get(v, 0))
                returned[part].append(v)
                nodes.setdefault(part, [])
        return returned

    def _prepared(self, nodes: Mapping[PartId, list[int]], stage: int, borrowed: frozenset[int]) -> frozenset[int]:
        """What all micro-batches of a stage would compute alike."""
        own = [k for part, ks in nodes.items() if part.stage == stage and part.kind in MICRO for k in ks]
        return frozenset(self.emitter.invariant(own, self.before | borrowed))

    def _outputs(
        self,
        part: PartId,
        nodes: Iterable[int],
        readers: Mapping[int, set[PartId]],
        returned: Mapping[PartId, list[int]],
    ) -> list[int]:
        kept = {*self.analysis.accumulated, *self.analysis.gathered, *self.graph.results}
        made = [v for k in nodes for v in self.graph.nodes[k].results]
        return sorted({*(v for v in made if v in kept or readers[v] - {part}), *returned.get(part, ())})

    def _prologue_for(self, wanted: Iterable[int]) -> list[int]:
        """Operations of the prologue that some values need."""
        needed: set[int] = set()
        pending = list(wanted)
        while pending:
            k = self.emitter.made_by.get(pending.pop())
            if k is not None and k not in needed:
                needed.add(k)
                pending.extend(self.graph.nodes[k].operands)
        return sorted(needed.intersection(self.analysis.prologue))

    def _joined(self, sections: dict[PartId, Section], makers: dict[int, PartId]) -> Pipeline:
        cargo: dict[tuple[PartId, int], set[int]] = defaultdict(set)
        edges: set[tuple[PartId, PartId]] = set()
        flows = {v: part for k, part in self.part_of.items() if part.kind in MICRO for v in self.graph.nodes[k].results}
        for part, section in sections.items():
            for v in section.inputs:
                maker = flows.get(v) if part.kind in MICRO else None
                maker = maker or makers.get(v)
                if v == INDEX or v in self.before or maker is None or maker == part:
                    continue
                edges.add((maker, part))
                if maker.stage != part.stage:
                    cargo[maker, part.stage].add(v)
            if part.kind in MICRO:
                edges.add((part, PartId("reduce", part.stage)))
        of_stage: dict[str, dict[int, tuple[int, ...]]] = {}
        for name, values in (("sums", self.analysis.accumulated), ("gathered", self.analysis.gathered)):
            of_stage[name] = {
                stage: tuple(v for v in values if v in makers and makers[v].stage == stage)
                for stage in range(self.assignment.stages)
            }
        return Pipeline(
            stages=self.assignment.stages,
            sections=sections,
            makers=makers,
            flows=flows,
            cargo={key: tuple(sorted(values)) for key, values in cargo.items()},
            edges=tuple(sorted(edges)),
            owner=self.assignment.owner,
            like=self.assignment.like,
            layers=self.layers,
            sums=of_stage["sums"],
            gathered=of_stage["gathered"],
            graph=self.graph,
            analysis=self.analysis,
            pieces=self.pieces,
            shares=self.assignment.shares,
        )
