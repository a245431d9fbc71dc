"""`Graph`: a step as one flat list of operations. What `flatten` makes and every analysis reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from automap_launch.program.program import Value
from automap_launch.train_step import SourceLine


@dataclass(slots=True)
class Node:
    """One operation; `operands` and `results` are indices into `Graph.values`.

    Two names are not StableHLO's: `loop_carry` is a loop's carried value as its body sees it (operand: the initial
    value), `branch` is a result of a `case` (operands: the index, then the value that each branch gives).

    Attributes:
      times: how often it runs in one step.
      in_loop: it stands in a loop's body.
      loop: number of the outermost loop around it.
      captured: values that the function it applies (a sort's comparison, a reduction) reads from outside.
      site: positions in the module of the calls and loops around it, and its own; empty for `loop_carry`, `branch`.
    """

    name: str
    operands: list[int]
    results: list[int]
    attributes: dict[str, Any]
    times: int = 1
    in_loop: bool = False
    reducer: str | None = None
    source: SourceLine | None = None
    captured: list[int] = field(default_factory=list)
    loop: int | None = None
    site: tuple[int, ...] = ()


@dataclass(slots=True)
class Graph:
    """Operations in an order in which they can run.

    `back_edges` holds, for every `loop_carry`, (the carried value, the value that the body hands to the next round).
    `trips` holds how often each outermost loop runs, if that is known; loops are numbered in the order in which the
    step comes to them.
    `tests` holds, for every loop that runs as long as data want, (its test, all values that it carries or hands on).
    """

    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    back_edges: list[tuple[int, int]] = field(default_factory=list)
    trips: dict[int, int] = field(default_factory=dict)
    tests: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def shape(self, value: int) -> tuple[int, ...]:
        return self.values[value].shape

    def add_value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def note(self, text: str) -> None:
        """Adds a note once, however many operations give rise to it."""
        if text not in self.notes:
            self.notes.append(text)


def where(source: SourceLine | None) -> str:
    """` at FILE:LINE`, or nothing where the line is not known."""
    return f" at {source}" if source else ""
