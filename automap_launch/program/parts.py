"""Forward, backward, update: which part of the step each operation belongs to, and which state is trained.

- *constant*: needs no batch data (a cast of a parameter, a step counter).
- *update*: needs batch data, has no batch dim, and leads to no operation that has one: all behind the sum over the
  batch. What has no batch dim but leads back to one (batch-norm statistics, a mask's denominator) is not.
- *forward* and *backward*: the others. A forward value leads to every gradient (through the loss) or to none (a
  metric), a backward value to those of its own and earlier layers alone. The first backward operations (the loss's
  own derivative) lead to all as well and count as forward; no dot or convolution that gives a gradient does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from automap_launch.program.graph import Graph
from automap_launch.program.program import Part
from automap_launch.program.union_find import UnionFind
from automap_launch.train_step import TrainStep

Lead = Literal["all", "some", "none"]


@dataclass(frozen=True, slots=True)
class Parts:
    """For each node its part; and argument indices of the trained state."""

    parts: list[Part]
    parameters: tuple[int, ...]


def split_parts(graph: Graph, step: TrainStep, has_batch: list[bool]) -> Parts:
    """Splits a step.

    Args:
      graph: the step.
      step: roles of its arguments, and which result replaces which.
      has_batch: for each value, whether some dim of it is the batch.
    """
    touches = [any(has_batch[v] for v in (*node.operands, *node.results)) for node in graph.nodes]
    if not any(touches):
        return Parts(["forward"] * len(graph.nodes), _float_state(graph, step))
    parts: list[Part] = ["update"] * len(graph.nodes)
    depends = _depends_on_batch(graph, step)
    leads = _leads_to(graph, touches)
    inner = []
    for k, node in enumerate(graph.nodes):
        if node.name == "loop_carry" and not touches[k]:
            parts[k] = "constant"  # it only names what the loop carries: parameters, sums of gradients
        elif touches[k] or (leads[k] and any(depends[v] for v in node.results)):
            inner.append(k)
        elif not any(depends[v] for v in node.results):
            parts[k] = "constant"
    parameters = _parameters(graph, step, parts, inner, has_batch)
    gradients = _gradients(graph, step, parts, inner, parameters)
    for k, lead in leading(graph, inner, gradients).items():
        parts[k] = "backward" if lead == "some" else "forward"
    return Parts(parts, parameters)


def _float_state(graph: Graph, step: TrainStep) -> tuple[int, ...]:
    return tuple(
        k for k, a in enumerate(step.arguments) if a.role == "state" and graph.values[graph.arguments[k]].is_float
    )


def _depends_on_batch(graph: Graph, step: TrainStep) -> list[bool]:
    depends = [False] * len(graph.values)
    for argument, value in zip(step.arguments, graph.arguments, strict=True):
        depends[value] = argument.role == "batch"
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
    return depends


def _leads_to(graph: Graph, targets: list[bool]) -> list[bool]:
    """For each node, whether it reaches a target node within one round of the loops around it (the update of a loop
    over whole training steps leads to the next round's forward part, and is an update all the same)."""
    needed = [False] * len(graph.values)
    leads = [False] * len(graph.nodes)
    for k in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[k]
        leads[k] = any(needed[v] for v in node.results)
        if leads[k] or targets[k]:
            for v in node.operands:
                needed[v] = True
    return leads


def _parameters(
    graph: Graph, step: TrainStep, parts: list[Part], inner: list[int], has_batch: list[bool]
) -> tuple[int, ...]:
    """State that inner nodes read, as it is or through constant nodes."""
    comes_from = [0] * len(graph.values)
    for k, argument in enumerate(step.arguments):
        value = graph.arguments[k]
        if argument.role == "state" and graph.values[value].is_float and not has_batch[value]:
            comes_from[value] = 1 << k
    for k, node in enumerate(graph.nodes):
        if parts[k] == "constant":
            origin = 0
            for v in node.operands:
                origin |= comes_from[v]
            for v in node.results:
                comes_from[v] = origin
    read = 0
    for k in inner:
        for v in graph.nodes[k].operands:
            read |= comes_from[v]
    return tuple(k for k in range(len(step.arguments)) if read >> k & 1)


def _gradients(
    graph: Graph, step: TrainStep, parts: list[Part], inner: list[int], parameters: tuple[int, ...]
) -> list[int]:
    """Values that inner nodes make for the update alone, which makes new parameters from them."""
    trained = set(parameters)
    wanted = {
        value
        for value, result in zip(graph.results, step.results, strict=True)
        if result.replaces is not None and result.replaces in trained
    }
    handed_on = dict(graph.back_edges)
    inside = set(inner)
    changed = True
    while changed:
        changed = False
        for k in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[k]
            passes = k not in inside and (parts[k] == "update" or node.name == "loop_carry")
            if not passes or wanted.isdisjoint(node.results):
                continue
            wanted.update(node.operands)
            later = handed_on.get(node.results[0])
            if later is not None and later not in wanted:
                wanted.add(later)
                changed = True
    # What inner nodes read as well is no gradient: the inverse deviation of batch norm makes its scale's gradient.
    read = {v for k in inner for v in graph.nodes[k].operands}
    return [v for k in inner for v in graph.nodes[k].results if v in wanted and v not in read]


def leading(graph: Graph, inner: Sequence[int], gradients: Collection[int]) -> dict[int, Lead]:
    """To which gradients each of a step's inner nodes leads, of those of its connected part of the step.

    A node that makes a gradient leads to some at most.
    """
    producer = {v: place for place, k in enumerate(inner) for v in graph.nodes[k].results}
    connected = UnionFind(len(inner))
    for place, k in enumerate(inner):
        for v in graph.nodes[k].operands:
            if v in producer:
                connected.union(place, producer[v])
    reach = [0] * len(graph.values)
    for bit, v in enumerate(gradients):
        reach[v] |= 1 << bit
    reached = [0] * len(inner)
    every: dict[int, int] = {}
    changed = True
    while changed:
        for place in range(len(inner) - 1, -1, -1):
            node = graph.nodes[inner[place]]
            mask = 0
            for v in node.results:
                mask |= reach[v]
            for v in node.operands:
                reach[v] |= mask
            reached[place] = mask
            home = connected.find(place)
            every[home] = every.get(home, 0) | mask
        changed = False
        for carried, handed_on in graph.back_edges:  # what a round makes leads where the next round takes it
            more = reach[carried] & ~reach[handed_on]
            reach[handed_on] |= more
            changed = changed or more != 0
    ends = set(gradients)
    found: dict[int, Lead] = {}
    for place, k in enumerate(inner):
        all_ = reached[place] == every[connected.find(place)] and ends.isdisjoint(graph.nodes[k].results)
        found[k] = "none" if not reached[place] else "all" if all_ else "some"
    return found
