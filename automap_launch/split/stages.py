"""Which stage of a pipeline each operation of a step belongs to, and which stage owns each piece of state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from automap_launch.program.batch_analysis import BatchAnalysis
from automap_launch.program.flops import flops_of
from automap_launch.program.graph import Graph, Node
from automap_launch.program.parts import leading
from automap_launch.program.union_find import UnionFind

Phase = Literal["forward", "backward", "weight", "update"]


@dataclass(frozen=True)
class State:
    """The step's state among the arguments and results of the graph: `arguments[k]` is replaced by `results[k]`."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Assignment:
    """Where everything runs.

    Attributes:
      stages: how many.
      place: for each micro or update operation, its phase and stage.
      rounds: for each update operation, how many times before it stages must hear from each other.
      owner: for each argument of the graph that is state, the stage that holds it.
      like: for each sum over micro-batches, the state argument of the same shape that it updates, or of which it
        updates one layer, where there is one.
      shares: of the forward flops, by stage.
      joined: sums over micro-batches whose terms are made on several stages; must be added up in the update instead.
    """

    stages: int
    place: dict[int, tuple[Phase, int]]
    rounds: dict[int, int]
    owner: dict[int, int]
    like: dict[int, int]
    shares: tuple[float, ...]
    joined: frozenset[int]


def assign(
    graph: Graph,
    analysis: BatchAnalysis,
    state: State,
    stages: int,
    wanted: Mapping[int, int],
) -> Assignment:
    """Assigns a step to stages.

    A forward operation runs on the stage whose share of the forward pass it is in, a backward operation where its
    residuals and parameters are, never on a later stage than its operands; the update of a state runs on the first
    stage that reads it.

    Args:
      graph, analysis: of the step, straight-line; sums handed over early (`boundary.py`).
      stages: how many.
      wanted: stages of forward operations (others have no say), as a plan has them (`blocks.py`); an operation may
        have to go to a later one, as it cannot run before its operands.
    """
    return _Assigner(graph, analysis, state, stages).run(wanted)


class _Assigner:
    def __init__(self, graph: Graph, analysis: BatchAnalysis, state: State, stages: int) -> None:
        self.graph = graph
        self.states = analysis.states
        self.micro = list(analysis.micro)
        self.update = list(analysis.update)
        self.sums = set(analysis.accumulated)
        self.before = set(analysis.prologue_values)
        self.state = state
        self.stages = stages
        self.all = (1 << stages) - 1
        self.made_by = {v: k for k, node in enumerate(graph.nodes) for v in node.results}
        self.micro_set = set(self.micro)
        self.depends = self._depends_on_state()
        self.component = self._components()

    def run(self, wanted: Mapping[int, int]) -> Assignment:
        forward, metric = self._parts()
        self.uses = [0] * len(self.state.arguments)  # for each state argument, the stages whose forward part reads it
        self.reads = [0] * len(self.graph.values)  # for each value without a batch, the same
        self.available = [self.all] * len(self.graph.values)  # for each value, the stages that have it
        self.place: dict[int, tuple[Phase, int]] = {}
        shares = self._forward(forward, self._as_wanted(forward, wanted))
        self.reading = self._reading()
        self._backward(set(forward), metric, wanted)
        joined = self._joined()
        owner_of = self._owners()
        rounds = self._update(owner_of)
        owner = {v: owner_of.get(self.component.find(v), 0) for v in self.state.arguments}
        return Assignment(self.stages, self.place, rounds, owner, self._like(), shares, frozenset(joined))

    # What depends on what

    def _depends_on_state(self) -> list[int]:
        """For each value that does not depend on the batch, the state arguments it is made from (bits)."""
        depends = [0] * len(self.graph.values)
        for bit, value in enumerate(self.state.arguments):
            depends[value] = 1 << bit
        for node in self.graph.nodes:
            if node.results and self.states[node.results[0]].kind == "none" and node.results[0] not in self.before:
                made = 0
                for v in node.operands:
                    made |= depends[v]
                for v in node.results:
                    depends[v] = made
        return depends

    def _large(self, value: int) -> bool:
        """Whether a value says to which state an operation of the update belongs: not a scalar, nor one spread."""
        if self.graph.values[value].size <= 1:
            return False
        return self.states[value].kind != "none" or bool(self.depends[value] & self.large_state)

    def _components(self) -> UnionFind:
        """What the update computes together: a parameter, its gradient and its optimizer state."""
        component = UnionFind(len(self.graph.values))
        self.large_state = sum(1 << bit for bit, v in enumerate(self.state.arguments) if self.graph.values[v].size > 1)
        needed = {v for k in self.update for v in self.graph.nodes[k].operands if self.states[v].kind == "none"}
        nodes = set(self.update)
        for k in range(len(self.graph.nodes) - 1, -1, -1):
            node = self.graph.nodes[k]
            if any(v in needed for v in node.results) and self.states[node.results[0]].kind == "none":
                needed.update(node.operands)
                nodes.add(k)
        for k in nodes:
            node = self.graph.nodes[k]
            for a, b in pairwise(v for v in (*node.operands, *node.results) if self._large(v)):
                component.union(a, b)
        for a, b in zip(self.state.arguments, self.state.results, strict=True):
            if self.graph.values[a].size > 1:
                component.union(a, b)
        return component

    def _parts(self) -> tuple[list[int], set[int]]:
        """Forward operations: those that lead to every gradient; and those that lead to none, for metrics."""
        trained = 0
        for k in self.micro:
            for v in self.graph.nodes[k].operands:
                if self.states[v].kind == "none":
                    trained |= self.depends[v]
        components = {self.component.find(v) for bit, v in enumerate(self.state.arguments) if trained >> bit & 1}
        gradients = [v for v in sorted(self.sums) if self.component.find(v) in components]
        leads = leading(self.graph, self.micro, gradients)
        forward = [k for k in self.micro if leads[k] == "all"]
        metric = {k for k in self.micro if leads[k] == "none"}
        return forward, metric

    # Forward

    def _forward(self, forward: list[int], stage_of: Mapping[int, int]) -> tuple[float, ...]:
        shares = [0] * self.stages
        for k in forward:
            stage, node = stage_of[k], self.graph.nodes[k]
            self.place[k] = ("forward", stage)
            shares[stage] += max(1, flops_of(self.graph, node))
            for v in node.operands:
                if self.states[v].kind == "none":
                    self.reads[v] |= 1 << stage
                    for bit in _bits(self.depends[v]):
                        self.uses[bit] |= 1 << stage
                elif self.made_by.get(v) in stage_of:
                    self.available[v] |= 1 << stage
            for v in node.results:
                self.available[v] = 1 << stage
        return tuple(share / max(1, sum(shares)) for share in shares)

    def _as_wanted(self, forward: list[int], wanted: Mapping[int, int]) -> dict[int, int]:
        stage_of: dict[int, int] = {}
        readers: dict[int, list[int]] = defaultdict(list)
        for k in forward:
            makers = [m for v in self.graph.nodes[k].operands if (m := self.made_by.get(v)) in stage_of]
            stage_of[k] = max([wanted.get(k, 0), *(stage_of[m] for m in makers)])
            for m in makers:
                readers[m].append(k)
        for k in reversed(forward):
            if k not in wanted and readers[k]:  # as late as it is read
                stage_of[k] = min(stage_of[r] for r in readers[k])
        return stage_of

    def _reading(self) -> list[int]:
        """For each value that is made from state without the batch, the stages whose forward part reads it, or what is
        made of it; where none does, those that read all that it is made of. One layer of stacked state is read where
        that layer runs, whoever reads the others."""
        nodes = [
            node
            for node in self.graph.nodes
            if node.results and self.states[node.results[0]].kind == "none" and self.depends[node.results[0]]
        ]
        for node in reversed(nodes):
            mask = 0
            for v in node.results:
                mask |= self.reads[v]
            for v in node.operands:
                self.reads[v] |= mask
        slices = {
            node.results[0]: (node.operands[0], layer)
            for node in nodes
            if node.name == "slice" and (layer := one_layer(self.graph, node)) is not None
        }
        layers: dict[tuple[int, int], int] = defaultdict(int)
        for v, place in slices.items():
            layers[place] |= self.reads[v]
        reading = [mask or self.all for mask in self.reads]
        for node in nodes:
            among = self.all
            for v in node.operands:
                among &= reading[v]
            for v in node.results:
                own = layers[slices[v]] if v in slices else self.reads[v]
                reading[v] = own or among or self.all
        return reading

    # Backward

    def _backward(self, forward: set[int], metric: set[int], wanted: Mapping[int, int]) -> None:
        """Each backward operation runs on the last stage, not after those of its operands, that has what it reads; what
        is for metrics alone as the plan has it, not before its operands."""
        latest: list[int | None] = [None] * len(self.graph.values)  # stage of a backward value
        waiting: list[int] = []
        for k in self.micro:
            if k in forward:
                continue
            node = self.graph.nodes[k]
            stages = [s for v in node.operands if (s := latest[v]) is not None]
            if not stages and k in metric:
                made = [self.place[m][1] for v in node.operands if (m := self.made_by.get(v)) in self.place]
                phase: Phase = "forward"
                stage = max([*made, *([wanted[k]] if k in wanted else [])], default=self.stages - 1)
            elif not stages and node.name == "optimization_barrier":
                # Of a rematerialised layer: it runs where the layer does, which its readers will tell.
                self.available[node.results[0]] = self.available[node.operands[0]]
                waiting.append(k)
                continue
            else:
                phase = "backward"
                bound = min(stages, default=self.stages - 1)
                can = self.all
                for v in node.operands:
                    if self.states[v].kind == "none":
                        can &= self.reading[v] if self.depends[v] else self.all
                    elif latest[v] is None:
                        can &= self.available[v]
                stage = max((s for s in _bits(can) if s <= bound), default=bound)
                for v in node.results:
                    latest[v] = stage
            self.place[k] = (phase, stage)
            for v in node.results:
                self.available[v] = 1 << stage
        readers: dict[int, list[int]] = defaultdict(list)
        for k in self.micro:
            for v in self.graph.nodes[k].operands:
                readers[v].append(k)
        for k in reversed(waiting):
            stages = [self.place[r][1] for r in readers[self.graph.nodes[k].results[0]] if r in self.place]
            self.place[k] = ("backward", max(stages, default=0))

    def _joined(self) -> set[int]:
        """Operations on sums whose terms are made on several stages, and those on what these make; of a stack of
        gradients that is written layer by layer, all of the writing: a stage sends its layers then, and no stack."""
        joined: set[int] = set()
        made: set[int] = set()
        for k in self.micro:
            node = self.graph.nodes[k]
            parts = [v for v in node.operands if self.states[v].kind == "partial"]
            if not parts or any(self.states[v].kind not in ("partial", "none") for v in node.operands):
                continue
            stages = {self.place[m][1] for v in parts if (m := self.made_by.get(v)) in self.place}
            if len(stages) > 1 or not made.isdisjoint(parts):
                joined.add(k)
                made.update(node.results)
        for k in reversed(self.micro):
            node = self.graph.nodes[k]
            if k in joined and node.name == "dynamic_update_slice":
                before = self.made_by.get(node.operands[0])
                if before in self.micro_set and self.graph.nodes[before].name == "dynamic_update_slice":
                    joined.add(before)
        return joined

    # Update

    def _owners(self) -> dict[int, int]:
        """The stage of each component: the first that reads its state, else the one that makes its sum."""
        owner: dict[int, int] = {}
        for bit, v in enumerate(self.state.arguments):
            if self.uses[bit]:
                root = self.component.find(v)
                owner[root] = min(owner.get(root, self.stages), _bits(self.uses[bit])[0])
        for v in sorted(self.sums):
            maker = self.made_by.get(v)
            if self.graph.values[v].size > 1 and maker in self.place:
                owner.setdefault(self.component.find(v), self.place[maker][1])
        for v in self.state.arguments:
            if self.graph.values[v].size <= 1:
                owner[self.component.find(v)] = 0
        return owner

    def _like(self) -> dict[int, int]:
        read = [v for bit, v in enumerate(self.state.arguments) if self.uses[bit]]
        found: dict[int, int] = {}
        for v in self.sums:
            for argument in read:
                same = self.component.find(argument) == self.component.find(v)
                if same and _is_like(self.graph.shape(v), self.graph.shape(argument)):
                    found.setdefault(v, argument)
        return found

    def _update(self, owner: dict[int, int]) -> dict[int, int]:
        rounds: dict[int, int] = {}
        inside = set(self.update)
        home = {
            r: owner.get(self.component.find(a), 0)
            for a, r in zip(self.state.arguments, self.state.results, strict=True)
        }
        for k in self.update:
            node = self.graph.nodes[k]
            large = [v for v in (*node.operands, *node.results) if self._large(v)]
            if large:
                stage = owner.get(self.component.find(large[0]), 0)
            else:
                made = {self.place[m][1] for v in node.operands if (m := self.made_by.get(v)) in self.place}
                stage = made.pop() if len(made) == 1 else 0
                # A scalar's new value (a running mean of the loss) is made where the scalar lies.
                stage = next((home[v] for v in node.results if v in home), stage)
            self.place[k] = ("update", stage)
            before = [m for v in node.operands if (m := self.made_by.get(v)) in inside]
            rounds[k] = max((rounds[m] + (self.place[m][1] != stage) for m in before), default=0)
        return rounds


def one_layer(graph: Graph, node: Node) -> int | None:
    """Which one element of the leading dim a slice takes, whole otherwise; None for any other slice."""
    shape = graph.shape(node.operands[0])
    starts, limits = node.attributes["start_indices"], node.attributes["limit_indices"]
    one = bool(shape) and shape[0] > 1 and limits[0] - starts[0] == 1
    whole = all(a == 0 and b == size for a, b, size in zip(starts[1:], limits[1:], shape[1:], strict=True))
    return starts[0] if one and whole else None


def _is_like(total: tuple[int, ...], argument: tuple[int, ...]) -> bool:
    """Whether a sum is one of a whole argument, or of one layer of it."""
    return total == argument or (total[:1] == (1,) and total[1:] == argument[1:])


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
