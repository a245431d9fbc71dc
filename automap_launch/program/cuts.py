"""Where a sequence of pieces of work may be cut: where few bytes cross, and into not too many parts."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

# A cut is a candidate when at most this many times the fewest bytes nearby cross there.
_NARROW = 1.2
# How far "nearby" reaches to either side, as a share of all work.
_NEARBY = 1 / 8
# A part with less than this share of an equal part's work is joined with a neighbour.
_TINY = 1 / 4


def choose_cuts(work: Sequence[int], crossing: Sequence[int], most: int) -> list[int]:
    """Places to cut at: `k` is between piece `k - 1` and piece `k`; ascending.

    Args:
      work: of each piece, at least 0.
      crossing: bytes that cross before each piece; the first is not looked at.
      most: parts to make at most.
    """
    total = sum(work)
    if total == 0 or most < 2:
        return []
    before = [0]
    for amount in work:
        before.append(before[-1] + amount)
    cuts = _narrow(before, crossing)
    return _joined(before, crossing, cuts, most)


def _narrow(before: Sequence[int], crossing: Sequence[int]) -> list[int]:
    """Candidate cuts; of several with no work between them the narrowest.

    A place is none if there are narrower ones nearby on both sides: inside a layer. One side alone does not tell, as
    nothing crosses where the model begins and where it ends.
    """
    count, reach = len(crossing), before[-1] * _NEARBY
    bytes_ = [0, *crossing[1:], 0]
    on_left = _least_nearby(before, bytes_, reach)
    on_right = _least_nearby([-x for x in reversed(before)], bytes_[::-1], reach)[::-1]
    found: list[int] = []
    for k in range(1, count):
        if crossing[k] > _NARROW * max(on_left[k], on_right[k]) or before[k] in (0, before[-1]):
            continue
        if found and before[found[-1]] == before[k]:
            if crossing[k] <= crossing[found[-1]]:
                found[-1] = k
        else:
            found.append(k)
    return found


def _least_nearby(places: Sequence[int], values: Sequence[int], reach: float) -> list[int]:
    """For each place, ascending, the least value at places up to `reach` before it, its own among them."""
    window: deque[int] = deque()  # values ascending
    least = []
    for k, value in enumerate(values):
        while window and values[window[-1]] >= value:
            window.pop()
        window.append(k)
        while places[window[0]] < places[k] - reach:
            window.popleft()
        least.append(values[window[0]])
    return least


def _joined(before: Sequence[int], crossing: Sequence[int], cuts: list[int], most: int) -> list[int]:
    """Drops cuts until parts are few and large enough: first those between small parts, where many bytes cross."""
    ends = [0, *cuts, len(before) - 1]
    left = {cut: ends[k] for k, cut in enumerate(cuts)}
    right = {cut: ends[k + 2] for k, cut in enumerate(cuts)}

    def weight(cut: int) -> float:
        return (before[right[cut]] - before[left[cut]]) / max(1, crossing[cut])

    def smallest(cut: int) -> int:
        return min(before[right[cut]] - before[cut], before[cut] - before[left[cut]])

    tiny = before[-1] / most * _TINY
    heap = [(smallest(cut) >= tiny, weight(cut), cut) for cut in cuts]
    heapq.heapify(heap)
    while heap:
        entry = heapq.heappop(heap)
        cut = entry[2]
        if cut not in left:
            continue
        now = (smallest(cut) >= tiny, weight(cut), cut)
        if now != entry:
            heapq.heappush(heap, now)
            continue
        if now[0] and len(left) < most:
            break
        a, b = left.pop(cut), right.pop(cut)
        if a in right:
            right[a] = b
        if b in left:
            left[b] = a
    return sorted(left)
