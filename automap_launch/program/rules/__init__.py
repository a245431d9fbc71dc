"""Linkage rules, a file a kind of operation. `relations_of` applies the rule of an operation's name."""

from __future__ import annotations

from automap_launch.program.graph import Graph, Node
from automap_launch.program.rules import contraction, elementwise, indexing, opaque
from automap_launch.program.rules.relations import RULES, Dim, Relations

__all__ = ["Dim", "Relations", "relations_of"]

_FILES = (contraction, elementwise, indexing, opaque)  # importing a file registers its rules


def relations_of(graph: Graph, node: Node, producers: dict[int, Node]) -> Relations:
    """What `node` says about the dims of its tensors. `producers`: the node that makes a value."""
    relations = Relations(graph, node, producers)
    RULES.get(node.name, opaque.unknown)(relations)
    return relations
