"""How many bytes of temporaries are alive at each moment of a step, split by what shards them.

Under a plan, a tensor's share of a device depends only on its dims' groups and on whether it is stored sharded (ZeRO).
So the live bytes of a moment are a linear function of one factor a *kind*, and the peak of any plan is a matrix
product and a maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from automap_launch.plan.decision import STORAGES
from automap_launch.plan.traffic import Traffic
from automap_launch.program.program import Program

# The storage level of what no plan stores sharded over the data axis.
_NEVER = len(STORAGES)

# The step is looked at this many times; between two looks, at the moment when most is alive.
_MOMENTS = 64


@dataclass(frozen=True)
class Kind:
    """Tensors of which every plan gives a device the same share.

    Attributes:
      groups: of their dims.
      stored_from: the storage level (index in STORAGES) from which they are sharded over the data axis as well: the
        update part works on shards, and its results stay shards where they are stored so.
    """

    groups: frozenset[int]
    stored_from: int = _NEVER


@dataclass(frozen=True)
class Liveness:
    """Bytes alive of whole tensors.

    Attributes:
      activations, gradients: float64[moments, kinds]. Arguments, and results that take a donated argument's place,
        are not counted: they are state.
    """

    kinds: tuple[Kind, ...]
    activations: npt.NDArray[np.float64]
    gradients: npt.NDArray[np.float64]


def liveness_of(program: Program, traffic: Traffic) -> Liveness:
    """Walks the program in its order; a tensor is alive from its making to its last use."""
    ops, values, step = program.ops, program.values, program.step
    end = len(ops)
    in_place: set[int] = set()
    kept: set[int] = set()
    for value, result in zip(program.results, step.results, strict=True):
        donated = result.replaces is not None and step.arguments[result.replaces].donated
        (in_place if donated else kept).add(value)
    last_use = dict.fromkeys(kept - in_place, end)
    update_uses = set()
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        # What a fused operation reads is read where the chain that it is part of runs.
        runs = max([i] + [last_use.get(v, i) for v in op.results if not traffic.materialised[v]])
        for value in op.operands:
            last_use[value] = max(last_use.get(value, 0), runs)
            if op.part == "update":
                update_uses.add(value)
    parameters = {
        value
        for value, result in zip(program.results, step.results, strict=True)
        if result.replaces in set(program.parameters)
    }
    kinds: dict[Kind, int] = {}
    births: list[tuple[int, int, int, int, bool]] = []
    for i, op in enumerate(ops):
        for value in op.results:
            if value in in_place or not traffic.materialised[value]:
                continue
            kind = Kind(frozenset(g for g in program.dim_groups[value] if g is not None))
            if op.part == "update" and values[value].shape and program.batch not in kind.groups:
                kind = replace(kind, stored_from=STORAGES.index("state" if value in parameters else "optimizer"))
            gradient = op.part == "backward" and value in update_uses
            number = kinds.setdefault(kind, len(kinds))
            births.append((i, last_use.get(value, i), number, values[value].bytes, gradient))
    curves = np.zeros((2, end + 2, max(len(kinds), 1)))
    for born, dies, number, size, gradient in births:
        curves[int(gradient), born, number] += size
        curves[int(gradient), dies + 1, number] -= size
    curves = curves.cumsum(axis=1)[:, :end] if end else curves[:, :1]
    moments = _peaks(curves.sum(axis=0), [k for kind, k in kinds.items() if program.batch in kind.groups])
    names = tuple(kinds) or (Kind(frozenset()),)
    return Liveness(names, curves[0, moments], curves[1, moments])


def _peaks(live: npt.NDArray[np.float64], batch_kinds: list[int]) -> npt.NDArray[np.int64]:
    """Moments at which most is alive in some stretch of the step: in all, of what has the batch, and of the rest."""
    total = live.sum(axis=1)
    batch = live[:, batch_kinds].sum(axis=1)
    stretches = np.array_split(np.arange(len(live)), min(_MOMENTS, len(live)))
    found = {int(s[np.argmax(curve[s])]) for s in stretches for curve in (total, batch, total - batch)}
    return np.array(sorted(found), dtype=np.int64)
