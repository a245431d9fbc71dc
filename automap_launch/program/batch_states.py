"""How each value of a step depends on the batch, by one forward propagation over its graph.

A value that the rules cannot keep in parts becomes `full`. That is exact as long as nothing heavy needs it: it is
computed once, after the last micro-batch, from values put together again. Where a value of the whole batch feeds back
into the work on examples, it is computed beforehand (the prologue) if it comes from data alone; else the step is
refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from automap_launch.program.batch_analysis import FULL, LOCAL, NONE, RefusalKind, Share, State
from automap_launch.program.graph import Graph, Node
from automap_launch.program.state_rules import Site, UnsplitError, reduced, states_of
from automap_launch.program.state_rules.site import partial

# Of a zero operand they make zero.
_KEEP_ZERO = frozenset(("broadcast_in_dim", "reshape", "convert", "transpose", "slice", "optimization_barrier"))


@dataclass(frozen=True, slots=True)
class Why:
    """Why an operation on batch values needs the whole batch.

    `fed_back`: operands that are reduced over the batch and meet values with a batch dim here; empty where the
    operation itself cannot work on parts. `culprit`: of a loop, the operation of its body that needs the whole batch
    (its place in the graph, and why), where one is known.
    """

    kind: RefusalKind
    text: str
    fed_back: tuple[int, ...] = ()
    culprit: tuple[int, Why] | None = None


_WHOLE_ROUNDS = "a loop whose rounds depend on what it makes of the whole batch"


@dataclass(slots=True)
class Choices:
    """What is decided before a propagation, and grows from one to the next.

    Attributes:
      beforehand: values that the prologue computes, with the state in which it hands them on.
      local: values that each micro-batch computes of its own examples, where the user allows it.
      denied: ids of operations that need positions within the micro-batch, where others need the same positions
        within the whole batch.
    """

    beforehand: dict[int, State] = field(default_factory=dict)
    local: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Propagation:
    """States of all values; and for operations that need the whole batch of batch values, why.

    `own`, `averaged`: see `BatchAnalysis`.
    """

    states: list[State]
    shares: dict[tuple[int, int], Share]
    conflicts: dict[int, Why]
    own: set[int]
    averaged: set[int]


def propagate(graph: Graph, batch: Mapping[int, State], choices: Choices) -> Propagation:
    """One propagation, repeated until the values that loops carry have the state that their bodies hand on.

    Args:
      graph: the step; loops once or unrolled.
      batch: states of the arguments (by value id) that hold the batch.
      choices: extended where positions within the batch are used in two ways.
    """
    run = _Run(graph, batch, choices)
    while True:
        run.once()
        if not (run.follow_loops() or run.check_columns()):
            return Propagation(run.states, run.shares, run.conflicts, run.own, run.averaged)


class _Run:
    def __init__(self, graph: Graph, batch: Mapping[int, State], choices: Choices) -> None:
        self.graph = graph
        self.batch = batch
        self.choices = choices
        self.makers = {v: (k, node) for k, node in enumerate(graph.nodes) for v in node.results}
        self.joined: dict[int, State] = {}  # states that loops force upon values
        self.culprits: dict[int, tuple[int, Why] | None] = {}  # of carried values that no longer have a batch dim
        self.states: list[State] = []
        self.shares: dict[tuple[int, int], Share] = {}
        self.conflicts: dict[int, Why] = {}
        self.zeros: set[int] = set()
        self.own: set[int] = set()
        self.averaged: set[int] = set()
        self.linear: set[int] = set()  # local values that are linear in local sums
        self.columns: dict[tuple[int, int], set[int]] = {}  # column of positions -> operations that count within

    def once(self) -> None:
        self.states = [NONE] * len(self.graph.values)
        for value, state in self.batch.items():
            self.states[value] = state
        self.shares, self.conflicts, self.columns, self.zeros = {}, {}, {}, set()
        self.own, self.averaged, self.linear = set(), set(), set()
        states, beforehand = self.states, self.choices.beforehand
        for k, node in enumerate(self.graph.nodes):
            if not node.operands:
                if node.name == "constant" and node.attributes.get("value") in (0, "zero"):
                    self.zeros.add(node.results[0])
            elif node.name in _KEEP_ZERO and node.operands[0] in self.zeros:
                self.zeros.add(node.results[0])
            if not all(states[v] is NONE for v in (*node.operands, *node.captured)):
                for value, state in zip(node.results, self.made(k, node), strict=True):
                    states[value] = state
            for value in node.results:
                if value in beforehand:
                    states[value] = beforehand[value]
                elif value in self.joined:
                    self.join(k, node, value)

    def made(self, k: int, node: Node) -> list[State]:
        states, local = self.states, self.choices.local
        kinds = {states[v].kind for v in (*node.operands, *node.captured)}
        if "full" in kinds:
            if "batch" in kinds:
                self.feed_back(k, node)
            return [FULL] * len(node.results)
        if "batch" in kinds:
            if node.name != "scatter" and any(states[v].kind == "partial" and v not in local for v in node.operands):
                self.feed_back(k, node)
                return [FULL] * len(node.results)
            return self.by_rule(
                k, Site(self.graph, node, states, self.zeros, self.makers, local, k in self.choices.denied)
            )
        if not local.isdisjoint(node.results):
            if self.is_linear(node):
                self.linear.update(node.results)
            return [LOCAL] * len(node.results)
        if any(states[v] is not NONE for v in outside(node)):
            return [FULL] * len(node.results)
        if "local" in kinds or (len(node.operands) > 1 and not local.isdisjoint(node.operands)):
            return [self.of_statistics(k, node)] * len(node.results)
        return [reduced(Site(self.graph, node, states, self.zeros, self.makers))] * len(node.results)

    def of_statistics(self, k: int, node: Node) -> State:
        """State of what the update alone reads of statistics that each micro-batch has of its own.

        A gradient is the mean of the micro-batches' gradients, so that products of statistics are made in each. What
        is linear in sums, as gradients are when an optimizer takes their squares, is summed first.
        """
        sums = any(self.states[v].kind == "partial" and v not in self.choices.local for v in node.operands)
        if sums:
            state = reduced(Site(self.graph, node, self.states, self.zeros, self.makers, self.choices.local))
            if state.reduction == "add":
                self.own.add(k)
                return state
            return FULL
        own = [v for v in node.operands if self.states[v] is not NONE]
        is_float = all(self.graph.values[v].is_float for v in node.results)
        if len(node.results) > 1 or not is_float or all(self.is_sum(v) for v in own):
            return self.of_sums(node)
        self.own.add(k)
        self.averaged.add(k)
        return partial("add")

    def of_sums(self, node: Node) -> State:
        if any(self.states[v].kind == "local" for v in node.operands):
            return FULL
        return reduced(Site(self.graph, node, self.states, self.zeros, self.makers))

    def is_sum(self, value: int) -> bool:
        return value in self.linear or (value in self.choices.local and self.states[value].kind == "partial")

    def is_linear(self, node: Node) -> bool:
        """Whether a local value is linear in local sums."""
        own = {v for v in node.operands if self.states[v] is not NONE}
        if not all(self.is_sum(v) for v in own):
            return False
        sums = _With(self.states, dict.fromkeys(own, partial("add")))
        return reduced(Site(self.graph, node, sums, self.zeros, self.makers)).kind == "partial"

    def by_rule(self, k: int, site: Site) -> list[State]:
        try:
            if any(self.states[v] is not NONE for v in outside(site.node)):
                raise site.unsplit("a comparison or reduction with values of the batch from outside it")
            found = states_of(site)
        except UnsplitError as error:
            if any(self.states[v].kind == "partial" for v in site.node.operands):
                self.feed_back(k, site.node)
            else:
                self.conflicts[k] = Why(error.kind, error.text)
            return [FULL] * len(site.node.results)
        for position, share in site.shares.items():
            self.shares[k, position] = share
        for concatenate, position in site.columns:
            self.shares[concatenate, position] = replace(self.shares[concatenate, position], first=True)
            self.columns.setdefault((concatenate, position), set()).add(k)
        return found

    def feed_back(self, k: int, node: Node) -> None:
        fed = tuple(dict.fromkeys(v for v in node.operands if self.states[v].kind in ("partial", "full")))
        self.conflicts[k] = Why("statistic", "a value reduced over the batch", fed)

    def join(self, k: int, node: Node, value: int) -> None:
        """The state of a carried value: its initial one, joined with what the body hands on."""
        initial, wanted = self.states[value], self.joined[value]
        self.states[value] = wanted
        if wanted.kind == "batch" and initial is NONE:
            self.shares[k, 0] = Share(wanted.dim, wanted.outer)
        elif wanted is FULL and initial.kind == "batch":
            self.conflicts[k] = Why("loop", _WHOLE_ROUNDS, culprit=self.culprits.get(value))

    def follow_loops(self) -> bool:
        """Whether a loop's body hands on another state than it began with: the propagation must be repeated."""
        changed = False
        for test, values in self.graph.tests:
            if self.states[test] is not NONE:
                for value in values:
                    changed |= self.force(value, FULL)
        for carried, handed_on in self.graph.back_edges:
            initial = self.makers[carried][1].operands[0]
            known, new = self.states[carried], self.states[handed_on]
            if known == new:
                continue
            if known is NONE and new.kind == "partial" and new.reduction == "add" and initial not in self.zeros:
                new = FULL
            if new is NONE and known.kind == "batch":
                self.shares[self.makers[carried][0], 1] = Share(known.dim, known.outer)
            if new is NONE and known.kind == "partial" and known.reduction == "add" and handed_on not in self.zeros:
                known = FULL
            if known is FULL and new.kind == "batch":
                self.conflicts.setdefault(self.makers[carried][0], Why("loop", _WHOLE_ROUNDS))
            if new is FULL and known.kind == "batch":
                self.culprits.setdefault(carried, self.culprit_of(handed_on))
            changed |= self.force(carried, joined(known, new))
        return changed

    def culprit_of(self, value: int) -> tuple[int, Why] | None:
        """The nearest operation before `value` that cannot work on parts of the batch, or else to which what was made
        of all of it is fed back. Once a loop's rounds are known to need the whole batch, propagation no longer meets
        a conflict there."""
        seen, pending, found = {value}, deque([value]), None
        while pending:
            k, node = self.makers.get(pending.popleft(), (None, None))
            if k is None or node is None:
                continue
            if k in self.conflicts:
                found = found or (k, self.conflicts[k])
                if not self.conflicts[k].fed_back:
                    return k, self.conflicts[k]
            fresh = [v for v in node.operands if v not in seen]
            seen.update(fresh)
            pending.extend(fresh)
        return found

    def force(self, value: int, state: State) -> bool:
        if self.states[value] == state or self.joined.get(value) == state:
            return False
        self.joined[value] = state
        return True

    def check_columns(self) -> bool:
        """Whether a column of positions that counts within the micro-batch is read where it counts over all."""
        if not self.columns:
            return False
        readers: dict[int, set[int]] = {self.graph.nodes[k].results[0]: set() for k, _ in self.columns}
        for k, node in enumerate(self.graph.nodes):
            for value in node.operands:
                if value in readers:
                    readers[value].add(k)
        outside = set(self.graph.results) | {v for _, v in self.graph.back_edges}
        denied = set()
        for (concatenate, _), within in self.columns.items():
            value = self.graph.nodes[concatenate].results[0]
            if value in outside or readers[value] != within:
                denied |= within
        changed = not denied <= self.choices.denied
        self.choices.denied |= denied
        return changed


class _With(Sequence[State]):
    """States, some of them replaced."""

    def __init__(self, states: Sequence[State], replaced: Mapping[int, State]) -> None:
        self._states, self._replaced = states, replaced

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, value: Any) -> Any:
        return self._replaced.get(value, self._states[value])


def outside(node: Node) -> list[int]:
    """What the function that an operation applies reads from outside: noted as such, or as operands beyond its own."""
    results = len(node.results)
    own = {"sort": results, "reduce": 2 * results, "reduce_window": 2 * results, "scatter": 2 * results + 1}
    return [*node.captured, *node.operands[own.get(node.name, len(node.operands)) :]]


def joined(left: State, right: State) -> State:
    """The state of a value that is now one, now the other. A sum must have been checked to begin with zero."""
    for one, other in ((left, right), (right, left)):
        if one == other or (one is NONE and other.kind in ("batch", "partial", "local")):
            return other
    return FULL


def independent_of(graph: Graph, origins: Iterable[int]) -> list[bool]:
    """For each value, whether it depends on none of `origins`."""
    depends = [False] * len(graph.values)
    for value in origins:
        depends[value] = True
    changed = True
    while changed:
        for node in graph.nodes:
            if any(depends[v] for v in node.operands):
                for v in node.results:
                    depends[v] = True
        changed = False
        for carried, handed_on in graph.back_edges:
            if depends[handed_on] and not depends[carried]:
                depends[carried] = changed = True
    return [not d for d in depends]
