"""Which result takes the place of which argument, by path, shape and dtype alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from automap_launch.train_step import Argument, Result


def match_by_structure(
    arguments: Sequence[Argument], results: Sequence[Result], additive: Collection[tuple[int, int]] = ()
) -> dict[int, int]:
    """Result index -> argument index, one to one.

    A result matches an argument of its shape and dtype whose path ends alike (`0/params/w` and `state/params/w`).
    The longest common end wins; among equals the pair in `additive` (argument, result), then the first in order. A
    pair in `additive` matches with no common end as well: a lone array returned as `0`.
    """
    alike: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for a, argument in enumerate(arguments):
        alike.setdefault((argument.shape, argument.dtype), []).append(a)
    pairs = []
    for o, result in enumerate(results):
        for a in alike.get((result.shape, result.dtype), ()):
            common = _common_end(result.path, arguments[a].path)
            added = (a, o) in additive
            if common or added:
                pairs.append((-common, not added, o, a))
    matched: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, o, a in sorted(pairs):
        if o not in matched and a not in taken:
            matched[o] = a
            taken.add(a)
    return matched


def _common_end(result: str, argument: str) -> int:
    """Number of trailing parts that the two paths share, but for the parameter's name."""
    if result == argument:
        return argument.count("/") + 1
    count = 0
    for left, right in zip(reversed(result.split("/")), reversed(argument.split("/")[1:]), strict=False):
        if left != right:
            break
        count += 1
    return count
