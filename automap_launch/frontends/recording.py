"""The graph of operations that were recorded instead of evaluated, and its replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

# Where a value lies is decided when it is made; moving it is then nothing.
_MOVES = frozenset({"device_put", "copy", "copy_p", "stage"})


class Node:
    """One recorded operation.

    Attributes:
      primitive, inputs, params: what to apply to what. Inputs are deferred arrays or concrete values.
      avals: abstract values of the outputs.
      tag: whose call of a jitted function this is; None for any other operation.
    """

    __slots__ = ("avals", "inputs", "params", "primitive", "tag")

    def __init__(self, primitive: Any, inputs: list[Any], params: dict[str, Any], avals: list[Any], tag: Any):
        self.primitive = primitive
        self.inputs = inputs
        self.params = params
        self.avals = avals
        self.tag = tag

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs."""
        return sum(aval_bytes(aval) for aval in self.avals)

    @property
    def moves(self) -> bool:
        """Whether the output is the input, at most in another place."""
        return self.primitive.name in _MOVES


def aval_bytes(aval: Any) -> int:
    """Bytes of an abstract array; 0 for what is none (tokens, references)."""
    if not hasattr(aval, "shape"):
        return 0
    return int(aval.size) * int(getattr(aval.dtype, "itemsize", 8))


def ancestors(values: Iterable[Any], node_of: Callable[[Any], Node | None]) -> list[Node]:
    """The nodes that `values` depend on, inputs first. `node_of(value)` is None for a concrete value."""
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Node, Iterator[Any]]] = []

    def push(value: Any) -> None:
        node = node_of(value)
        if node is not None and id(node) not in done:
            done.add(id(node))
            stack.append((node, iter(node.inputs)))

    for value in values:
        push(value)
        while stack:
            node, inputs = stack[-1]
            before = len(stack)
            for item in inputs:
                push(item)
                if len(stack) > before:
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def replay(
    nodes: Sequence[Node],
    outputs: Sequence[Any],
    read: Callable[[Any, dict[int, list[Any]]], Any],
    substitute: Callable[[Node], list[Any] | None] = lambda node: None,
) -> list[Any]:
    """Applies the recorded operations again and returns `outputs`.

    Args:
      nodes: in an order in which inputs come first.
      read: value of an input, given the results so far by `id` of their node.
      substitute: results to take for a node in place of applying it, or None.
    """
    results: dict[int, list[Any]] = {}
    for node in nodes:
        taken = substitute(node)
        if taken is None:
            inputs = [read(value, results) for value in node.inputs]
            if node.moves:
                taken = inputs
            else:
                made = node.primitive.bind(*inputs, **node.params)
                # The barrier keeps XLA from fusing over it: the numbers are those of the operations one by one.
                taken = [_barrier(x) for x in (made if node.primitive.multiple_results else [made])]
        results[id(node)] = taken
    return [read(value, results) for value in outputs]


def _barrier(array: Any) -> Any:
    if hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, jax.numpy.inexact):
        return jax.lax.optimization_barrier(array)
    return array
