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

    An argument begins in the class of its leading dim. Where the step does nothing with that dim but pick from it
    (steps that a loop walks, a data set from which the step cuts its batch), it begins in the class of the leading dim
    of what is picked, unless state has that dim too (the features of a single example). Between classes with equally
    many arguments the one with more elements wins. An argument with one class in two dims (a mask) has no say.
    """
    consumers: dict[int, list[Node]] = defaultdict(list)
    computed: set[int | None] = set()
    for node in graph.nodes:
        for value in set(node.operands):
            consumers[value].append(node)
        if node.name not in _SELECTS:
            computed.update(item for value in (*node.operands, *node.results) for item in linkage.classes[value])
    computed.discard(None)
    state = {
        item
        for argument, value in zip(arguments, graph.arguments, strict=True)
        if argument.role == "state"
        for item in linkage.classes[value]
    }
    votes: Counter[int] = Counter()
    elements: Counter[int] = Counter()
    named = [a.path for a in arguments if a.role == "batch"]
    for argument, value in zip(arguments, graph.arguments, strict=True):
        classes = [item for item in linkage.classes[value] if item is not None]
        if argument.role != "batch" or len(classes) != len(set(classes)):
            continue
        own = linkage.classes[value][0] if linkage.classes[value] else None
        found = {own} if own in computed else _picked(graph, linkage, consumers, value) - state
        for item in found:
            if item is not None:
                votes[item] += 1
                elements[item] += graph.values[value].size
    if votes:
        return min(votes, key=lambda item: (-votes[item], -elements[item], item)), None
    if not named:
        return None, "the step has no batch argument: it is not sharded over data"
    return None, (
        f"no dim of the batch ({', '.join(named[:4])}) runs through the step: its leading dims have size 1, or a loop "
        "takes its examples one by one; it is not sharded over data"
    )


def _picked(graph: Graph, linkage: Linkage, consumers: dict[int, list[Node]], value: int) -> set[int | None]:
    """Classes of the leading dims of what is picked from an argument; dims of size 1 do not count."""
    found: set[int | None] = set()
    seen = {value}
    pending = [value]
    while pending:
        for node in consumers[pending.pop()]:
            if node.name not in _SELECTS or node.results[0] in seen:
                continue
            result = node.results[0]
            seen.add(result)
            leading = next((d for d, size in enumerate(graph.shape(result)) if size > 1), None)
            item = None if leading is None else linkage.classes[result][leading]
            if item is None:
                pending.append(result)
            else:
                found.add(item)
    return found
