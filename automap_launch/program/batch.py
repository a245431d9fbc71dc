"""Which class of dims is the batch."""

from __future__ import annotations

from collections import Counter, defaultdict

from automap_launch.program.graph import Graph, Node
from automap_launch.program.linkage import Linkage
from automap_launch.train_step import Argument

# What hands on a part of its operand, or the operand in another form: the batch may begin behind it.
_SELECTS = frozenset(
    ("slice", "dynamic_slice", "gather", "reshape", "transpose", "convert", "optimization_barrier", "loop_carry")
)


def batch_class(graph: Graph, linkage: Linkage, arguments: tuple[Argument, ...]) -> tuple[int | None, str | None]:
    """The class in which most batch arguments begin, and a note where there is none.

    An argument begins in the class of its leading dim; where that is never sharded (steps that a loop walks, a data
    set from which the step cuts its batch), in the class of the leading dim of what is cut out of it. A class that
    no state has a dim in goes before one that some state has (features before examples).
    """
    consumers: dict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for value in set(node.operands):
            consumers[value].append(node)
    state = {
        item
        for argument, value in zip(arguments, graph.arguments, strict=True)
        if argument.role == "state"
        for item in linkage.classes[value]
    }
    votes: Counter[int] = Counter()
    named = [a.path for a in arguments if a.role == "batch"]
    for argument, value in zip(arguments, graph.arguments, strict=True):
        if argument.role == "batch":
            own = _leading(graph, linkage, value)
            found = {own} if own is not None else _behind(graph, linkage, consumers, value) - state
            votes.update(item for item in found if item is not None)
    if votes:
        return min(votes, key=lambda item: (item in state, -votes[item], item)), None
    if not named:
        return None, "the step has no batch argument: it is not sharded over data"
    return None, (
        f"no dim of the batch ({', '.join(named[:4])}) runs through the step: a loop takes its examples one by one, "
        "or its leading dims have size 1; it is not sharded over data"
    )


def _leading(graph: Graph, linkage: Linkage, value: int) -> int | None:
    """Class of the first dim that is not of size 1."""
    for item, size in zip(linkage.classes[value], graph.shape(value), strict=True):
        if size > 1:
            return item
    return None


def _behind(graph: Graph, linkage: Linkage, consumers: dict[int, list[Node]], value: int) -> set[int | None]:
    found: set[int | None] = set()
    seen = {value}
    pending = [value]
    while pending:
        for node in consumers[pending.pop()]:
            if node.name not in _SELECTS or node.results[0] in seen:
                continue
            result = node.results[0]
            seen.add(result)
            item = _leading(graph, linkage, result)
            if item is None:
                pending.append(result)
            else:
                found.add(item)
    return found
