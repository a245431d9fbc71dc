"""Parameters' paths made short enough for a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

# Of the names in a table, all together.
_LENGTH = 40
# Of a layer (`block_3`, `blocks/3`), and not of a name (`w1`).
_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+")


def common_root(paths: Sequence[str]) -> str:
    """What all paths begin with, in whole components and with the slash after them: `state/params/`."""
    parents = [path.split("/")[:-1] for path in paths]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*parents, strict=False))
    return "".join(f"{parts[0]}/" for parts in shared)


def some_names(paths: Sequence[str], root: str = "") -> str:
    """The first path or two, and how many there are besides: `encoder/block_*/mlp/wi/kernel and 24 more`. Paths that
    differ by their numbers only are one, with stars for the numbers.

    Args:
      root: which all paths of a table begin with; left out.
    """
    covered: dict[str, int] = {}
    for path in paths:
        name = _NUMBER.sub("*", path.removeprefix(root))
        covered[name] = covered.get(name, 0) + 1
    names = list(covered)
    two = len(names) > 1 and len(names[0]) + len(names[1]) + 2 <= _LENGTH
    shown = names[: 2 if two else 1]
    left = len(paths) - sum(covered[name] for name in shown)
    return ", ".join(_shortened(name) for name in shown) + (f" and {left} more" if left else "")


def _shortened(path: str) -> str:
    """A path, its middle left out where it is long: `encoder/…/mlp/wi`."""
    if len(path) <= _LENGTH:
        return path
    first, *rest = re.split("(?<=/)", path)
    for start in range(1, len(rest)):
        tail = "".join(rest[start:])
        for short in (f"{first}…/{tail}", f"…/{tail}"):
            if len(short) <= _LENGTH:
                return short
    half = (_LENGTH - 1) // 2
    return f"{path[:half]}…{path[-half:]}"
