"""Which reductions a compiler runs as one: those that do not wait for each other.

XLA's combiner joins all-reduces of one group of devices wherever none needs another's result (the gradients of a
layer's input by way of its queries, keys and values). The bytes stay the same; they wait for the devices once.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from automap_launch.program.program import Program


def waits_of(program: Program) -> list[float]:
    """For each operation, its share of one wait for the other devices where its partial sums are over a group other
    than the batch: 1 / n where n operations sum over the same group with as many such sums before them, at most.

    Sums over the batch are gradients and are joined in buckets; they wait for themselves here.
    """
    depths: list[npt.NDArray[np.int32] | None] = [None] * len(program.values)
    keys: list[tuple[int, int, int] | None] = []
    for op in program.ops:
        depth: npt.NDArray[np.int32] | None = None
        for value in op.operands:
            before = depths[value]
            if before is not None:
                depth = before if depth is None else np.maximum(depth, before)
        summed = {program.dim_groups[op.operands[position]][dim] for position, dim in op.contracted}
        groups = sorted(g for g in summed if g is not None and g != program.batch)
        if groups:
            depth = np.zeros(len(program.groups), np.int32) if depth is None else depth.copy()
            depth[groups] += 1
        for value in op.results:
            depths[value] = depth
        keys.append((groups[0], int(depth[groups[0]]), op.times) if groups and depth is not None else None)
    together = Counter(key for key in keys if key is not None)
    return [1.0 if key is None else 1.0 / together[key] for key in keys]
