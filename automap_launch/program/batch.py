"""Which class of dims is the batch, and which arguments hold it."""

from __future__ import annotations

from collections import Counter, defaultdict

from automap_launch.program.batch_analysis import State
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
    many arguments one that state does not have wins, then the one with more elements. An argument with one class in
    two dims (a mask) has no say.
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
        return min(votes, key=lambda item: (-votes[item], item in state, -elements[item], item)), None
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


def batch_arguments(
    graph: Graph, linkage: Linkage, batch: int | None, arguments: tuple[Argument, ...]
) -> list[dict[int, State]]:
    """Ways to cut a step's arguments into micro-batches, by argument index; the best first. Each is exact if the
    batch analysis accepts it: an argument that is not cut is read whole.

    - What is linked with the batch, and batch arguments whose leading dim has its size though the step does not link
      them (a permutation between them).
    - What is linked with the batch alone.
    - Where the step itself cuts the batch into chunks that a loop walks: a part of each chunk.
    """
    linked = {
        k: State("batch", linkage.classes[value].index(batch))
        for k, value in enumerate(graph.arguments)
        if batch is not None and linkage.classes[value].count(batch) == 1
    }
    sizes = Counter(
        graph.shape(graph.arguments[k])[state.dim] for k, state in linked.items() if arguments[k].role == "batch"
    )
    leading = Counter(
        shape[0]
        for argument, value in zip(arguments, graph.arguments, strict=True)
        if argument.role == "batch" and (shape := graph.shape(value)) and shape[0] > 1
    )
    if not sizes and not leading:
        return []
    size = (sizes or leading).most_common(1)[0][0]
    widened = dict(linked)
    for k, (argument, value) in enumerate(zip(arguments, graph.arguments, strict=True)):
        if k not in widened and argument.role == "batch" and graph.shape(value)[:1] == (size,):
            widened[k] = State("batch", 0)
    ways = [widened]
    if linked and linked != widened:
        ways.append(linked)
    ways.extend(
        {k: State("batch", state.dim, chunks) for k, state in widened.items()}
        for chunks in _chunks(graph, widened, size)
    )
    return ways


def _chunks(graph: Graph, ways: dict[int, State], size: int) -> list[int]:
    """Into how many chunks reshapes of arguments cut the batch."""
    held = {graph.arguments[k]: state.dim for k, state in ways.items()}
    found: dict[int, None] = {}
    for node in graph.nodes:
        if node.name == "reshape" and node.operands[0] in held:
            dim = held[node.operands[0]]
            target = graph.shape(node.results[0])
            if len(target) > dim and 1 < target[dim] < size and size % target[dim] == 0:
                found.setdefault(target[dim])
    return list(found)
