"""Disjoint sets of integers."""

from __future__ import annotations


class UnionFind:
    """Sets over 0 .. size-1; the representative of a set is its smallest member, whatever the order of unions."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def union(self, left: int, right: int) -> None:
        left, right = self.find(left), self.find(right)
        if left < right:
            self._parent[right] = left
        else:
            self._parent[left] = right
