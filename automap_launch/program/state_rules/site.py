"""One operation as the batch rules see it, and the table of rules.

A rule says, for an operation with at least one operand of state `batch`, what states the results have. It must keep
one invariant: the operation on the operands' parts gives the results' parts (state `batch`), or values that reduce
over micro-batches to the whole result (state `partial`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from automap_launch.program.batch_analysis import LOCAL, RefusalKind, Share, State
from automap_launch.program.graph import Graph, Node


class UnsplitError(Exception):
    """An operation cannot run on the parts of a batch by themselves. `text`: what it does, as a noun phrase."""

    def __init__(self, kind: RefusalKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


@dataclass(slots=True)
class Site:
    """An operation, the states of its operands, and what its rule finds.

    Attributes:
      states: of all values so far.
      zeros: values known to be zero everywhere.
      makers: the node that makes a value, with its id.
      local: partial values that this operation reads as the micro-batch's own.
      denied: its positions are also read by others, to whom they count over the whole batch.
      shares: by operand position, how a value without batch dim is cut.
      columns: (id of a concatenate, operand position) of columns of positions that must count within the micro-batch.
    """

    graph: Graph
    node: Node
    states: Sequence[State]
    zeros: AbstractSet[int]
    makers: Mapping[int, tuple[int, Node]]
    local: AbstractSet[int] = frozenset()
    denied: bool = False
    shares: dict[int, Share] = field(default_factory=dict)
    columns: list[tuple[int, int]] = field(default_factory=list)

    def state(self, position: int) -> State:
        value = self.node.operands[position]
        return LOCAL if value in self.local else self.states[value]

    def shape(self, position: int) -> tuple[int, ...]:
        return self.graph.shape(self.node.operands[position])

    def result_shape(self, position: int = 0) -> tuple[int, ...]:
        return self.graph.shape(self.node.results[position])

    def is_batch(self, position: int) -> bool:
        return self.state(position).kind == "batch"

    def first_batch(self) -> tuple[int, State]:
        """The first operand of state `batch`: its position and state."""
        position = next(k for k in range(len(self.node.operands)) if self.is_batch(k))
        return position, self.state(position)

    def is_zero(self, position: int) -> bool:
        return self.node.operands[position] in self.zeros

    def cut(self, position: int, dim: int, outer: int = 1) -> None:
        """Demands that the operand's dim `dim` is cut like the batch.

        Raises:
          UnsplitError: it holds the batch elsewhere, or cannot be cut.
        """
        state = self.state(position)
        if state.kind == "batch":
            if (state.dim, state.outer) != (dim, outer):
                raise self.unsplit("an operation that brings different examples together")
        elif state.kind in ("none", "local"):
            if not 0 <= dim < len(self.shape(position)) or self.shape(position)[dim] % outer:
                raise self.unsplit("an operation that brings examples and other values together by position")
            self.shares[position] = Share(dim, outer)
        else:
            raise self.unsplit("a value of the whole batch taken apart by example")

    def every(self, state: State) -> list[State]:
        """The same state for all results."""
        return [state] * len(self.node.results)

    def unsplit(self, text: str, kind: RefusalKind = "mixing") -> UnsplitError:
        """The error of a rule that does not hold here."""
        return UnsplitError(kind, text)


Rule = Callable[[Site], list[State]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of the operations called `names`."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def batch(dim: int, outer: int = 1) -> State:
    return State("batch", dim, outer)


def partial(reduction: str) -> State:
    """The state of a result that reduces over micro-batches by `add`, `max` or `min`."""
    if reduction not in ("add", "max", "min"):
        raise ValueError(f"values reduce over micro-batches by add, max or min, not by {reduction}")
    return State("partial", reduction=reduction)  # type: ignore[arg-type]
