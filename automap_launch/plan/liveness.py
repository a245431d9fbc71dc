"""How many bytes of temporaries are alive at each moment of a step, split by what shards them.

Under a plan, a tensor's share of a device depends only on its dims' groups and on whether it is stored sharded (ZeRO).
So the live bytes of a moment are a linear function of one factor a *kind*, and the peak of any plan is a matrix
product and a maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from automap_launch.plan.decision import STORAGES
from automap_launch.plan.platforms import PlatformRules
from automap_launch.plan.recomputing import recomputed_in_loops
from automap_launch.plan.traffic import Traffic
from automap_launch.program.program import Program

# The storage level of what no plan stores sharded over the data axis.
_NEVER = len(STORAGES)

# Operations whose result takes the place of operand 0.
_IN_PLACE = frozenset({"loop_carry", "dynamic_update_slice"})
_INDEX_BYTES = 4
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
      births: the tensors.
      reduced_apart: the update sums over gradients' dims (Adafactor, a global norm). Where those are stored sharded,
        each sum is over the devices, too, and waits for its gradient: the compiler joins the reduction of a gradient
        with the sum before it and with no other gradient's.
      recomputed: operations of loops that a step without these loops runs early, all rounds' together
        (`PlatformRules.breadth_first`).
    """

    kinds: tuple[Kind, ...]
    activations: npt.NDArray[np.float64]
    gradients: npt.NDArray[np.float64]
    births: tuple[Birth, ...] = ()
    reduced_apart: bool = False
    recomputed: frozenset[int] = frozenset()

    @cached_property
    def largest_gradients(self) -> npt.NDArray[np.float64]:
        """float64[kinds]: bytes of the largest gradient of each kind."""
        numbers = {kind: k for k, kind in enumerate(self.kinds)}
        largest = np.zeros(len(self.kinds))
        for birth in self.births:
            if birth.gradient:
                largest[numbers[birth.kind]] = max(largest[numbers[birth.kind]], birth.bytes)
        return largest

    def reduced_together(self, shares: npt.NDArray[np.float64], bucket: float) -> npt.NDArray[np.float64]:
        """float64[plans]: bytes of gradients that one reduction has at most, where what is stored sharded is so.

        Args:
          shares: float64[plans, kinds], of `MeshTable.shares`. bucket: into which the compiler joins gradients.
        """
        if not self.reduced_apart:
            return np.full(len(shares), bucket)
        largest: npt.NDArray[np.float64] = (shares * self.largest_gradients).max(axis=1)
        return np.minimum(largest, bucket)


@dataclass
class Birth:
    """A tensor in memory, alive from operation `at` to operation `dies`.

    `made`: the last operation that makes it or writes into it. `residual`: made in the forward part, read in the
    backward part.
    """

    at: int
    dies: int
    kind: Kind
    bytes: int
    gradient: bool
    made: int
    residual: bool = False


def liveness_of(program: Program, traffic: Traffic, rules: PlatformRules) -> Liveness:
    """Walks the program in its order; a tensor is alive from its making to its last use."""
    ops, values, step = program.ops, program.values, program.step
    end = len(ops)
    in_place: set[int] = set()
    kept: set[int] = set()
    for value, result in zip(program.results, step.results, strict=True):
        donated = result.replaces is not None and step.arguments[result.replaces].donated
        (in_place if donated else kept).add(value)
    rounds_end = _rounds_ends(program)
    makers = {value: i for i, op in enumerate(ops) for value in op.results}
    last_use = dict.fromkeys(kept - in_place, end)
    update_uses = set()
    backward_uses = {value for op in ops if op.part == "backward" for value in op.operands}
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        # What a fused operation reads is read where the chain that it is part of runs.
        runs = max([i] + [last_use.get(v, i) for v in op.results if not traffic.materialised[v]])
        for value in op.operands:
            last = runs
            if value in makers and ops[makers[value]].times < ops[runs if runs < end else i].times:
                last = max(last, rounds_end(runs, ops[makers[value]].times))
            last_use[value] = max(last_use.get(value, 0), last)
            if op.part == "update":
                update_uses.add(value)
        # What is written in place is one tensor with what it replaces.
        if op.name in _IN_PLACE and op.results[0] in last_use:
            last_use[op.operands[0]] = max(last_use[op.operands[0]], last_use[op.results[0]])
    parameters = {
        value
        for value, result in zip(program.results, step.results, strict=True)
        if result.replaces in set(program.parameters)
    }
    births: dict[int, Birth] = {}
    homes: dict[int, int] = {}
    for i, op in enumerate(ops):
        for value in op.results:
            gradient = op.part == "backward" and value in update_uses
            home = homes.get(op.operands[0], op.operands[0]) if op.name in _IN_PLACE else value
            if home in births:
                homes[value] = home
                own = births[home]
                own.gradient |= gradient
                own.made = max(own.made, i) if op.name != "loop_carry" else own.made
                own.residual |= value in backward_uses and ops[own.made].part == "forward"
                if op.part == "update" and op.times > 1:
                    # Gradients that a loop stacks up: the compiler keeps the stack as the update wants it.
                    own.kind = replace(own.kind, stored_from=STORAGES.index("optimizer"))
            elif value not in in_place and traffic.materialised[value]:
                kind = Kind(frozenset(g for g in program.dim_groups[value] if g is not None))
                if op.part == "update" and values[value].shape and program.batch not in kind.groups:
                    kind = replace(kind, stored_from=STORAGES.index("state" if value in parameters else "optimizer"))
                residual = op.part == "forward" and value in backward_uses
                births[value] = Birth(i, last_use.get(value, i), kind, values[value].bytes, gradient, i, residual)
    alive = [*births.values(), *(_window_indices(program, makers) if rules.window_indices else [])]
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(birth.kind for birth in alive))}
    curves = np.zeros((2, end + 2, max(len(kinds), 1)))
    for birth in alive:
        curves[int(birth.gradient), birth.at, kinds[birth.kind]] += birth.bytes
        curves[int(birth.gradient), birth.dies + 1, kinds[birth.kind]] -= birth.bytes
    curves = curves.cumsum(axis=1)[:, :end] if end else curves[:, :1]
    moments = _peaks(curves.sum(axis=0), [k for kind, k in kinds.items() if program.batch in kind.groups])
    names = tuple(kinds) or (Kind(frozenset()),)
    apart = any(op.part == "update" and op.name == "reduce" and op.contracted for op in ops)
    early = recomputed_in_loops(program) if rules.breadth_first else frozenset()
    return Liveness(names, curves[0, moments], curves[1, moments], tuple(alive), apart, early)


def _peaks(live: npt.NDArray[np.float64], batch_kinds: list[int]) -> npt.NDArray[np.int64]:
    """Moments at which most is alive in some stretch of the step: in all, of what has the batch, and of the rest."""
    total = live.sum(axis=1)
    batch = live[:, batch_kinds].sum(axis=1)
    stretches = np.array_split(np.arange(len(live)), min(_MOMENTS, len(live)))
    found = {int(s[np.argmax(curve[s])]) for s in stretches for curve in (total, batch, total - batch)}
    return np.array(sorted(found), dtype=np.int64)


def _window_indices(program: Program, makers: dict[int, int]) -> list[Birth]:
    """Indices that a max-pooling's gradient is computed with: for each dim, one an input and one an output element.

    They are made as soon as the input is there.
    """
    found = []
    for i, op in enumerate(program.ops):
        if op.name == "select_and_scatter":
            image, windows = (program.values[v] for v in op.operands[:2])
            kind = Kind(frozenset(g for g in program.dim_groups[op.operands[0]] if g is not None))
            size = _INDEX_BYTES * len(image.shape) * (image.size + windows.size)
            made = makers.get(op.operands[0], 0)
            kept = program.ops[made].part == "forward"
            found.append(Birth(made, i, kind, size, gradient=False, made=made, residual=kept))
    return found


def _rounds_ends(program: Program) -> Callable[[int, int], int]:
    """A function (i, times): the end of the loop around operation `i`, seen from outside, where things run `times`.

    What a loop reads from outside is alive until its last round ends.
    """
    ends: dict[int, list[int]] = {}

    def end(i: int, times: int) -> int:
        if times not in ends:
            last = list(range(len(program.ops) + 1))
            for k in range(len(program.ops) - 2, -1, -1):
                if program.ops[k].times > times and program.ops[k + 1].times > times:
                    last[k] = last[k + 1]
            ends[times] = last
        return ends[times][i]

    return end
