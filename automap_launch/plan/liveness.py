"""How many bytes of temporaries are alive at each moment of a step, split by what shards them.

Under a plan, a tensor's share of a device depends only on its dims' groups. So the live bytes of a moment are a
linear function of one factor a *kind* (a set of groups), and the peak of any plan is a matrix product and a maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.plan.traffic import Traffic
from automap_launch.program.program import Program

Kind = frozenset[int]

# The step is looked at this many times; between two looks, at the moment when most is alive.
_MOMENTS = 64


@dataclass(frozen=True)
class Liveness:
    """Bytes alive of whole tensors.

    Attributes:
      kinds: sets of groups.
      activations, gradients: float64[moments, kinds]. Arguments, and results that take a donated argument's place,
        are not counted: they are state.
    """

    kinds: tuple[Kind, ...]
    activations: npt.NDArray[np.float64]
    gradients: npt.NDArray[np.float64]


def liveness_of(program: Program, traffic: Traffic) -> Liveness:
    """Walks the program in its order; a tensor is alive from its making to its last use."""
    ops, values = program.ops, program.values
    end = len(ops)
    last_use = {}
    update_uses = set()
    for i, op in enumerate(ops):
        for value in op.operands:
            last_use[value] = i
            if op.part == "update":
                update_uses.add(value)
    step = program.step
    in_place = set()
    for value, result in zip(program.results, step.results, strict=True):
        if result.replaces is not None and step.arguments[result.replaces].donated:
            in_place.add(value)
        else:
            last_use[value] = end
    kinds: dict[Kind, int] = {}
    births: list[tuple[int, int, int, int, bool]] = []
    for i, op in enumerate(ops):
        for value in op.results:
            if value in in_place or not traffic.materialised[value]:
                continue
            kind = frozenset(g for g in program.dim_groups[value] if g is not None)
            gradient = op.part == "backward" and value in update_uses
            number = kinds.setdefault(kind, len(kinds))
            births.append((i, last_use.get(value, i), number, values[value].bytes, gradient))
    curves = np.zeros((2, end + 2, max(len(kinds), 1)))
    for born, dies, number, size, gradient in births:
        curves[int(gradient), born, number] += size
        curves[int(gradient), dies + 1, number] -= size
    curves = curves.cumsum(axis=1)[:, :end] if end else curves[:, :1]
    moments = _peaks(curves.sum(axis=0), [k for kind, k in kinds.items() if program.batch in kind])
    names = tuple(kinds) or (frozenset(),)
    return Liveness(names, curves[0, moments], curves[1, moments])


def _peaks(live: npt.NDArray[np.float64], batch_kinds: list[int]) -> npt.NDArray[np.int64]:
    """Moments at which most is alive in some stretch of the step: in all, of what has the batch, and of the rest."""
    total = live.sum(axis=1)
    batch = live[:, batch_kinds].sum(axis=1)
    stretches = np.array_split(np.arange(len(live)), min(_MOMENTS, len(live)))
    found = {int(s[np.argmax(curve[s])]) for s in stretches for curve in (total, batch, total - batch)}
    return np.array(sorted(found), dtype=np.int64)
