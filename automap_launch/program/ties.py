"""Isomorphic classes of repeated layers tied into one, so that a deep model has the decisions of one layer.

Two classes are isomorphic when the same operations use them in the same places: the colour of a class is the multiset
of (operation, operand slot, dim, shape, dims' sizes) that it takes part in. No name of a parameter is looked at.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

from automap_launch.program.graph import Graph
from automap_launch.program.linkage import Linkage


def tie(graph: Graph, linkage: Linkage, alone: int | None = None) -> list[list[int]]:
    """Classes by what they are tied into, in order of their first class.

    Two classes that meet in one tensor are never tied: one mesh axis cannot shard two dims of it. The layers of a
    chain of equal matrices therefore come out as two groups, in turn. `alone` (the batch) is tied with nothing.
    """
    colours = _colours(graph, linkage)
    meets: dict[int, set[int]] = defaultdict(set)
    for dims in linkage.classes:
        present = {c for c in dims if c is not None}
        if len(present) > 1:
            for a in present:
                meets[a] |= present - {a}
    groups: list[list[int]] = []
    of_colour: dict[str, list[list[int]]] = defaultdict(list)
    for item in sorted(colours):
        if item == alone:
            groups.append([item])
            continue
        same = of_colour[colours[item]]
        home = next((group for group in same if meets[item].isdisjoint(group)), None)
        if home is None:
            home = []
            same.append(home)
            groups.append(home)
        home.append(item)
    return groups


def _colours(graph: Graph, linkage: Linkage) -> dict[int, str]:
    places: dict[tuple[object, ...], int] = {}  # interned, so that counting hashes small integers
    uses: dict[int, Counter[int]] = defaultdict(Counter)
    for node in graph.nodes:
        for slot, value in enumerate((*node.operands, *(node.results))):
            shape = graph.shape(value)
            for dim, item in enumerate(linkage.classes[value]):
                if item is not None:
                    place = (node.name, slot, dim, shape)
                    uses[item][places.setdefault(place, len(places))] += 1
    texts = {number: repr(place) for place, number in places.items()}
    return {
        item: hashlib.sha256("\n".join(sorted(f"{texts[k]} {n}" for k, n in count.items())).encode()).hexdigest()
        for item, count in uses.items()
    }
