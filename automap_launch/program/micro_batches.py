"""`analyse_batch`: how a step runs in micro-batches, or why it cannot."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from automap_launch.program.batch_analysis import NONE, BatchAnalysis, Refusal, State
from automap_launch.program.batch_states import Choices, Propagation, Why, independent_of, propagate
from automap_launch.program.graph import Graph, Node, where

# What a step that has it to do on the whole batch gains nothing from micro-batches for.
_HEAVY = frozenset(("dot_general", "convolution", "cholesky", "triangular_solve", "fft", "while"))


def analyse_batch(
    graph: Graph, batch: Mapping[int, State], trained: Collection[int], local_statistics: bool = False
) -> BatchAnalysis:
    """How a step runs in micro-batches.

    Args:
      graph: the step, loops once or unrolled.
      batch: states of the arguments that hold the batch, by argument index.
      trained: indices of arguments from which nothing may be computed before the step begins on the batch: arrays of
        parameters and optimizer state.
      local_statistics: allow each micro-batch statistics of its own (batch norm).
    """
    states = {graph.arguments[k]: state for k, state in batch.items()}
    from_data = independent_of(graph, [graph.arguments[k] for k in trained])
    resolver = _Resolver(graph, from_data, local_statistics)
    # Drawn from a generator that the module does not show: once, or micro-batches would see other numbers.
    resolver.choices.beforehand.update({v: NONE for node in graph.nodes if node.name == "rng" for v in node.results})
    while True:
        found = propagate(graph, states, resolver.choices)
        origins = _origins_of_taint(graph, found)
        if not resolver.resolve(found, origins):
            return _report(graph, batch, found, origins, resolver)


class _Resolver:
    """Decides what the prologue computes and what each micro-batch takes of its own examples."""

    def __init__(self, graph: Graph, from_data: list[bool], local_statistics: bool) -> None:
        self.graph = graph
        self.from_data = from_data
        self.local_statistics = local_statistics
        self.choices = Choices()
        self.makers = {v: k for k, node in enumerate(graph.nodes) for v in node.results}

    def resolve(self, found: Propagation, taint: list[int | None]) -> bool:
        """Whether a conflict that no other one causes can be resolved; `taint` as `_origins_of_taint` gives it."""
        changed = False
        for k, why in found.conflicts.items():
            node = self.graph.nodes[k]
            if any(taint[v] is not None for v in node.operands):
                continue
            if not why.fed_back:
                changed |= self.compute_beforehand({v: _fresh(self.graph, node, v, found) for v in node.results})
                continue
            closure, origins = self.reduced_from(why.fed_back, found)
            beforehand = {v: _origin_state(self.graph, self.graph.nodes[self.makers[v]], v, found) for v in origins}
            moved = [v for v, state in beforehand.items() if self.compute_beforehand({v: state})]
            if moved:
                changed = True
            elif self.may_be_local(origins, found) and not (closure | origins) <= self.choices.local:
                self.choices.local |= closure | origins
                changed = True
        return changed

    def compute_beforehand(self, values: Mapping[int, State]) -> bool:
        """Whether values can be added to the prologue: they come from data alone, and from no loop's round."""
        for value in values:
            node = self.graph.nodes[self.makers[value]]
            if not self.from_data[value] or node.in_loop or value in self.choices.beforehand:
                return False
        self.choices.beforehand.update(values)
        return bool(values)

    def may_be_local(self, origins: Collection[int], found: Propagation) -> bool:
        sums = all(found.states[v].kind == "partial" and found.states[v].reduction == "add" for v in origins)
        return self.local_statistics and bool(origins) and sums

    def reduced_from(self, values: Iterable[int], found: Propagation) -> tuple[set[int], set[int]]:
        """From which reductions over the batch values are made: what is in between, and the reductions' results."""
        between: set[int] = set()
        origins: set[int] = set()
        pending = list(values)
        while pending:
            value = pending.pop()
            maker = self.makers.get(value)
            reduced = found.states[value].kind in ("partial", "full", "local")
            if maker is None or not reduced or value in between or value in origins:
                continue
            operands = self.graph.nodes[maker].operands
            if any(found.states[v].kind == "batch" for v in operands):
                origins.add(value)
            else:
                between.add(value)
                pending.extend(operands)
        return between, origins


def _fresh(graph: Graph, node: Node, value: int, found: Propagation) -> State:
    """The state in which the prologue hands on what it makes of the batch as a whole: cut like the operand that held
    the batch, if it has the same dim."""
    shape = graph.shape(value)
    for operand in node.operands:
        state, before = found.states[operand], graph.shape(operand)
        if state.kind == "batch" and len(shape) == len(before) and shape[state.dim] == before[state.dim]:
            return state
    return NONE


def _origin_state(graph: Graph, node: Node, value: int, found: Propagation) -> State:
    return NONE if found.states[value].kind == "partial" else _fresh(graph, node, value, found)


def _origins_of_taint(graph: Graph, found: Propagation) -> list[int | None]:
    """For each value that is computed after the last micro-batch from values put together again: the id of the
    operation that first does so; None for any other value."""
    taint: list[int | None] = [None] * len(graph.values)
    if not found.conflicts:
        return taint
    changed = True
    while changed:
        for k, node in enumerate(graph.nodes):
            origin = next((taint[v] for v in node.operands if taint[v] is not None), None)
            if origin is None and k in found.conflicts:
                origin = k
            if origin is not None:
                for v in node.results:
                    if found.states[v].kind == "full" and taint[v] is None:
                        taint[v] = origin
        changed = False
        for carried, handed_on in graph.back_edges:
            if taint[handed_on] is not None and taint[carried] is None and found.states[carried].kind == "full":
                taint[carried] = taint[handed_on]
                changed = True
    return taint


def _report(
    graph: Graph, batch: Mapping[int, State], found: Propagation, taint: list[int | None], resolver: _Resolver
) -> BatchAnalysis:
    choices = resolver.choices
    refusals = _refusals(graph, found, taint, resolver)
    micro, update = _places(graph, found, choices)
    whole = {*graph.arguments, *choices.beforehand}
    read = dict.fromkeys((*graph.results, *(v for k in update for v in graph.nodes[k].operands)))
    prologue, handed_on = _prologue(graph, choices, micro, update)
    sizes = [
        graph.shape(v)[found.states[v].dim] // found.states[v].outer
        for v in {v for k in micro for v in (*graph.nodes[k].operands, *graph.nodes[k].results)}
        if found.states[v].kind == "batch"
    ]
    inside = set(micro)
    shares = {place: share for place, share in found.shares.items() if place[0] in inside}
    sizes += [
        graph.shape(_operand(graph, k, position))[share.dim] // share.outer for (k, position), share in shares.items()
    ]
    if not any(found.states[v].kind == "batch" for k in micro for v in graph.nodes[k].results):
        refusals = refusals or (Refusal("no operation of the step works on a batch of examples", "no batch"),)
    return BatchAnalysis(
        arguments=dict(batch),
        states=tuple(found.states),
        shares=shares,
        prologue=prologue,
        prologue_values=handed_on,
        micro=micro,
        update=update,
        accumulated=tuple(v for v in read if found.states[v].kind == "partial"),
        gathered=tuple(v for v in read if found.states[v].kind == "batch" and v not in whole),
        local_values=tuple(sorted(v for v in choices.local if found.states[v].kind == "partial")),
        own=frozenset(found.own),
        averaged=frozenset(found.averaged),
        max_micro_batches=1 if refusals else math.gcd(*sizes),
        refusals=refusals,
        one_stage=_one_stage(graph, found, choices),
    )


def _one_stage(graph: Graph, found: Propagation, choices: Choices) -> Refusal | None:
    """Why stages are refused: micro-batches that take statistics of their own are not told to other stages."""
    own = (v for v in sorted(choices.local) if found.states[v].kind == "partial")
    value = next(own, None)
    if value is None:
        return None
    node = next(node for node in graph.nodes if value in node.results)
    return Refusal(
        f"where micro-batches take statistics of their own{where(node.source)} (search.allow_local_batch_stats), the "
        "step runs in one stage",
        "statistic",
        node.name,
        node.source,
    )


def _operand(graph: Graph, k: int, position: int) -> int:
    """Position 1 of a `loop_carry` is what the loop's body hands on."""
    node = graph.nodes[k]
    return (
        dict(graph.back_edges)[node.results[0]] if node.name == "loop_carry" and position else node.operands[position]
    )


def _places(graph: Graph, found: Propagation, choices: Choices) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Operations that a micro-batch runs, and those that run once after the last."""
    handed_on = dict(graph.back_edges)
    needed = set(graph.results)  # by the update or as a result, on the whole batch
    wanted: set[int] = set()  # by a micro-batch
    read = {*graph.results, *(v for node in graph.nodes for v in node.operands)}
    micro: set[int] = set()
    update: set[int] = set()
    changed = True
    while changed:
        before = len(needed), len(wanted), len(micro), len(update)
        for k in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[k]
            operands = list(node.operands)
            if node.name == "loop_carry":
                operands.append(handed_on[node.results[0]])
            kinds = {found.states[v].kind for v in node.results if v not in choices.beforehand}
            effect = node.name == "custom_call" and read.isdisjoint(node.results)  # a print: once a step
            if effect or (kinds & {"full", "local"} and not needed.isdisjoint(node.results)):
                update.add(k)
                needed.update(operands)
            if kinds & {"batch", "partial", "local"} and not effect:
                last = not needed.isdisjoint(node.results) and kinds & {"batch", "partial"}
                if last or not wanted.isdisjoint(node.results):
                    micro.add(k)
                    wanted.update(operands)
        changed = before != (len(needed), len(wanted), len(micro), len(update))
    return tuple(sorted(micro)), tuple(sorted(update))


def _prologue(
    graph: Graph, choices: Choices, micro: tuple[int, ...], update: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Operations of the prologue, and its values that later operations may read."""
    if not choices.beforehand:
        return (), ()
    makers = {v: k for k, node in enumerate(graph.nodes) for v in node.results}
    back = dict(graph.back_edges)
    used: set[int] = set()
    pending = [*graph.results, *(v for k in (*micro, *update) for v in graph.nodes[k].operands)]
    seen: set[int] = set()
    while pending:  # through operations that do not depend on the batch, which run wherever they are read
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in choices.beforehand:
            used.add(value)
        elif value in makers:
            node = graph.nodes[makers[value]]
            pending.extend(node.operands)
    ops: set[int] = set()
    pending = list(used)
    while pending:
        value = pending.pop()
        k = makers.get(value)
        if k is None or k in ops:
            continue
        ops.add(k)
        node = graph.nodes[k]
        pending.extend(node.operands)
        pending.extend(back[v] for v in node.results if v in back)
    return tuple(sorted(ops)), tuple(sorted(used))


def _refusals(graph: Graph, found: Propagation, taint: list[int | None], resolver: _Resolver) -> tuple[Refusal, ...]:
    """Why the step is refused: conflicts that heavy operations depend on, or that stand within a loop's round."""
    at_fault: dict[int, None] = {}
    for k, node in enumerate(graph.nodes):
        origins = [t for v in (*node.operands, *node.results) if (t := taint[v]) is not None]
        if origins and (node.name in _HEAVY or (k in found.conflicts and node.in_loop)):
            at_fault.setdefault(origins[0])
    refusals: dict[str, Refusal] = {}
    for node in graph.nodes:
        if node.name == "rng" and node.in_loop:
            reason = f"a loop draws random numbers{where(node.source)} that cannot be drawn again for each micro-batch"
            refusals[reason] = Refusal(reason, "opaque", node.name, node.source)
    for k in at_fault:
        refusal = _refusal(graph, k, found.conflicts[k], found, resolver)
        refusals.setdefault(refusal.reason, refusal)
    return tuple(refusals.values())


_WORDS = {"add": "a sum or mean", "max": "a maximum", "min": "a minimum"}


def _refusal(graph: Graph, k: int, why: Why, found: Propagation, resolver: _Resolver) -> Refusal:
    if why.culprit is not None:
        k, why = why.culprit[0], replace(why.culprit[1], kind=why.kind, fed_back=())
    node = graph.nodes[k]
    if not why.fed_back:
        return Refusal(
            f"{why.text}{where(node.source)} needs the whole batch at once", why.kind, node.name, node.source
        )
    _, origins = resolver.reduced_from(why.fed_back, found)
    # The last of them: what was reduced earlier has mostly gone into it.
    value = max(origins, key=resolver.makers.__getitem__, default=None)
    origin = None if value is None else graph.nodes[resolver.makers[value]]
    state = None if value is None else found.states[value]
    made = where(origin.source) if origin else ""
    words = _WORDS[state.reduction] if state is not None and state.kind == "partial" else "a value"
    return Refusal(
        f"{words} over the batch{made} is used for each example{where(node.source)}",
        why.kind,
        node.name,
        node.source,
        local_statistics=all(found.states[v].kind == "partial" and found.states[v].reduction == "add" for v in origins),
    )
