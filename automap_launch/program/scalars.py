"""Integer scalars followed through a step: the trip counts of counted loops.

`lax.scan` and `lax.fori_loop` count in a carried integer that the body raises by a constant and the condition
compares with a constant. Every integer scalar is followed as `base + offset`, where base is nothing (a constant) or a
carried value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from automap_launch.program.graph import Node
from automap_launch.program.program import Value

# Operations on integers, and the directions of a comparison, by their StableHLO names.
FOLD: dict[str, Callable[..., int]] = {
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "select": lambda p, a, b: a if p else b,
    "clamp": lambda low, x, high: min(max(low, x), high),
    "negate": lambda a: -a,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}
_SAME = ("convert", "reshape", "optimization_barrier")


@dataclass(frozen=True)
class _Affine:
    """`base + offset`; base is a carried value's id, or None for a constant."""

    base: int | None
    offset: int


class Scalars:
    """What is known of each integer scalar."""

    def __init__(self) -> None:
        self._known: dict[int, _Affine] = {}
        self._tests: dict[int, tuple[str, int, int]] = {}

    def start(self, carried: int) -> None:
        """A loop begins to carry this value."""
        self._known[carried] = _Affine(carried, 0)

    def follow(self, node: Node, values: list[Value]) -> None:
        """Learns what `node` makes of scalars that are known."""
        if len(node.results) != 1:
            return
        kind = values[node.results[0]]
        if kind.shape or not kind.dtype.startswith(("int", "uint", "bool")):
            return
        if node.name == "compare":
            self._tests[node.results[0]] = (node.attributes["comparison_direction"], *node.operands)
        made = self._made(node)
        if made is not None:
            self._known[node.results[0]] = made

    def _made(self, node: Node) -> _Affine | None:
        if node.name == "constant":
            value = node.attributes["value"]
            return _Affine(None, value) if isinstance(value, int) else None
        known = [self._known.get(v) for v in node.operands]
        operands = [k for k in known if k is not None]
        if not operands or len(operands) != len(known):
            return None
        if node.name in _SAME:
            return operands[0]
        if node.name in ("add", "subtract"):
            sign = 1 if node.name == "add" else -1
            left, right = operands
            if right.base is None:
                return _Affine(left.base, left.offset + sign * right.offset)
            return _Affine(right.base, left.offset + right.offset) if left.base is None and sign == 1 else None
        if any(k.base is not None for k in operands):
            return None
        numbers = [k.offset for k in operands]
        if node.name == "compare":
            return _Affine(None, int(COMPARE[node.attributes["comparison_direction"]](*numbers)))
        fold = FOLD.get(node.name)
        return None if fold is None else _Affine(None, int(fold(*numbers)))

    def trips(self, test: int, carried: Mapping[int, tuple[int, int]]) -> int | None:
        """How often a loop runs, None if that is not known.

        Args:
          test: the value of the loop's condition.
          carried: for each carried value, its initial value and what the body hands on.
        """
        if test not in self._tests:
            return None
        direction, left, right = self._tests[test]
        counter, bound = self._known.get(left), self._known.get(right)
        if counter is None or bound is None:
            return None
        if counter.base is None:
            direction = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(direction, direction)
            counter, bound = bound, counter
        if counter.base is None or counter.base not in carried or bound.base is not None:
            return None
        first, following = (self._known.get(v) for v in carried[counter.base])
        if first is None or first.base is not None or following is None or following.base != counter.base:
            return None
        return _count(direction, first.offset + counter.offset, bound.offset, following.offset)


def _count(direction: str, first: int, bound: int, step: int) -> int | None:
    """Rounds of `for (i = first; i <direction> bound; i += step)`."""
    if direction in ("GT", "GE"):
        direction, first, bound, step = {"GT": "LT", "GE": "LE"}[direction], -first, -bound, -step
    if direction == "LE":
        direction, bound = "LT", bound + 1
    if direction == "NE" and step and (bound - first) % step == 0 and (bound - first) // step >= 0:
        return (bound - first) // step
    if direction != "LT" or step <= 0:
        return None
    return max(0, -((first - bound) // step))
