"""What one operation says about the dims of its tensors, and the table of rules that say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from automap_launch.program.graph import Graph, Node

Dim = tuple[int, int]  # (value id, dim)


@dataclass(slots=True)
class Relations:
    """Filled by the rule of `node`'s operation.

    Attributes:
      producers: the node that makes a value.
      links: pairs of dims that must be partitioned alike.
      splits: (dim, factors, major first): a reshape cuts the dim into the factors, or merges them into it.
      contracted: (operand position, dim) whose sharding leaves the results a partial sum.
      whole: dims that must not be sharded when the operation runs.
      walked: dims that a loop walks element by element: no plan may ever shard them.
      fixed: dims that no plan may shard for another reason: spatial dims, the words of a PRNG key.
      cut: dims of which the operation takes, or fills, a part, or that it looks at in windows. Were one sharded, the
        compiler would not gather it: it would shard the part as well, exchange the edges, and go on from there.
      unknown: no rule covers the operation: its dims were all kept whole.
    """

    graph: Graph
    node: Node
    producers: dict[int, Node]
    links: list[tuple[Dim, Dim]] = field(default_factory=list)
    splits: list[tuple[Dim, tuple[Dim, ...]]] = field(default_factory=list)
    contracted: list[tuple[int, int]] = field(default_factory=list)
    whole: list[Dim] = field(default_factory=list)
    walked: list[Dim] = field(default_factory=list)
    fixed: list[Dim] = field(default_factory=list)
    cut: list[Dim] = field(default_factory=list)
    unknown: bool = False

    def shape(self, value: int) -> tuple[int, ...]:
        return self.graph.shape(value)

    def link(self, left: Dim, right: Dim) -> None:
        """Links two dims of equal size; a dim of size 1 is broadcast and links nothing."""
        size = self.shape(left[0])[left[1]]
        if size == self.shape(right[0])[right[1]] and size > 1:
            self.links.append((left, right))

    def link_all(self, left: int, right: int, skip: tuple[int, ...] = ()) -> None:
        """Links the dims of two values of equal rank, one to one."""
        for dim in range(len(self.shape(left))):
            if dim not in skip:
                self.link((left, dim), (right, dim))

    def keep_whole(self, *dims: Dim) -> None:
        self.whole.extend(d for d in dims if self.shape(d[0])[d[1]] > 1)

    def keep_all_whole(self) -> None:
        for value in (*self.node.operands, *self.node.results):
            self.keep_whole(*((value, dim) for dim in range(len(self.shape(value)))))


Rule = Callable[[Relations], None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of the operations called `names`."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register
