"""Classes of dims that must be partitioned alike: union-find over every dim of every value.

The smallest (value, dim) of a class names it, so that the same module gives the same classes in any process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from automap_launch.program.graph import Graph, Node
from automap_launch.program.rules import Dim, Relations, relations_of
from automap_launch.program.union_find import UnionFind

# Made in whatever sharding their users want: they neither gain from a sharding nor mind one.
_FREE = ("constant", "iota")


@dataclass(frozen=True, slots=True)
class Linkage:
    """Classes of a graph's dims.

    Attributes:
      classes: for each value, the class of each dim; None for a dim of size 1 and for one that is never sharded.
      contracted: for each node, see `Op.contracted`.
      whole: for each node, see `Op.whole`; dims without a class left out.
      unknown: indices of nodes that no rule covers.
      cut: classes with a dim of which some operation takes a part.
    """

    classes: list[tuple[int | None, ...]]
    contracted: list[tuple[tuple[int, int], ...]]
    whole: list[tuple[Dim, ...]]
    unknown: list[int]
    cut: frozenset[int]

    def without(self, classes: frozenset[int]) -> Linkage:
        """The same with dims of `classes` bound to stay whole."""
        kept = [tuple(None if c in classes else c for c in dims) for dims in self.classes]
        whole = [tuple((v, d) for v, d in pairs if kept[v][d] is not None) for pairs in self.whole]
        return replace(self, classes=kept, whole=whole, cut=self.cut - classes)


def link(graph: Graph, alike: Iterable[tuple[int, int]] = (), fixed: Iterable[Dim] = ()) -> Linkage:
    """Links all dims of a graph.

    Args:
      graph: the step.
      alike: pairs of values of equal shape to link dim by dim besides (a state argument and what replaces it).
      fixed: dims never to be sharded besides those that the operations' rules name.
    """
    producers = {result: node for node in graph.nodes for result in node.results}
    relations = [relations_of(graph, node, producers) for node in graph.nodes]
    sets = _Classes(graph)
    for relation in relations:
        for left, right in relation.links:
            sets.union(left, right)
    for left_value, right_value in (*graph.back_edges, *alike):
        for dim, size in enumerate(graph.shape(left_value)):
            if size > 1:
                sets.union((left_value, dim), (right_value, dim))
    sets.walked = {sets.of(dim) for r in relations for dim in r.walked}
    sets.never = {sets.of(dim) for r in relations for dim in r.fixed} | {sets.of(dim) for dim in fixed} | sets.walked
    for relation in relations:
        for single, factors in relation.splits:
            _split(relation, single, factors, sets)

    useful = _useful(graph, relations, sets)
    classes: list[tuple[int | None, ...]] = []
    for value, kind in enumerate(graph.values):
        roots = [sets.of((value, dim)) for dim in range(len(kind.shape))]
        classes.append(
            tuple(
                root if size > 1 and root in useful and root not in sets.never else None
                for root, size in zip(roots, kind.shape, strict=True)
            )
        )
    return Linkage(
        classes=classes,
        contracted=[tuple(r.contracted) for r in relations],
        whole=[tuple(d for d in dict.fromkeys(r.whole) if classes[d[0]][d[1]] is not None) for r in relations],
        unknown=[k for k, r in enumerate(relations) if r.unknown],
        cut=frozenset(c for r in relations for v, d in r.cut if (c := classes[v][d]) is not None),
    )


class _Classes:
    """Disjoint sets of dims, and which of them contain a dim that is walked or never sharded, as unions go on."""

    def __init__(self, graph: Graph) -> None:
        self.offsets = [0, *accumulate(len(value.shape) for value in graph.values)]
        self.walked: set[int] = set()
        self.never: set[int] = set()
        self._sets = UnionFind(self.offsets[-1])

    def of(self, dim: Dim) -> int:
        return self._sets.find(self.offsets[dim[0]] + dim[1])

    def union(self, left: Dim, right: Dim) -> None:
        a, b = self.of(left), self.of(right)
        self._sets.union(a, b)
        for marked in (self.walked, self.never):
            if a in marked or b in marked:
                marked.add(self.of(left))


def _split(relation: Relations, single: Dim, factors: tuple[Dim, ...], classes: _Classes) -> None:
    """Links a dim with the major one of the factors that it is cut into: the only one that carries a sharding.

    Where a loop walks the major factor (micro-batches of a batch), the next one takes its place, at the price of
    moving data when the reshape runs. Other factors stay whole.
    """
    carrier = next((k for k, factor in enumerate(factors) if classes.of(factor) not in classes.walked), None)
    if carrier is None or classes.of(factors[carrier]) in classes.never:
        relation.keep_whole(single, *factors)
        if carrier == 0:
            # The compiler would carry the sharding over to the factor all the same.
            classes.never.add(classes.of(single))
        return
    classes.union(single, factors[carrier])
    relation.keep_whole(*(factor for k, factor in enumerate(factors) if k != carrier))
    if carrier > 0:
        relation.keep_whole(single, factors[carrier])


def _useful(graph: Graph, relations: list[Relations], classes: _Classes) -> set[int]:
    """Classes from whose sharding some operation gains: one that has a float tensor there, and not whole."""
    useful: set[int] = set()
    for relation in relations:
        node = relation.node
        if _is_free(graph, node):
            continue
        whole = set(relation.whole)
        for value in {*node.operands, *node.results}:
            if not graph.values[value].is_float:
                continue
            for dim, size in enumerate(graph.shape(value)):
                if size > 1 and (value, dim) not in whole:
                    useful.add(classes.of((value, dim)))
    return useful


def _is_free(graph: Graph, node: Node) -> bool:
    return node.name in _FREE or (node.name == "broadcast_in_dim" and not graph.shape(node.operands[0]))
