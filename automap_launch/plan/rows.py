"""The program as a table of *rows*: operations that cost the same under every plan, counted instead of repeated.

A deep model repeats its layers, so tens of thousands of operations are a few hundred rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from automap_launch.plan.sharding import Groups
from automap_launch.plan.traffic import Traffic
from automap_launch.program.program import ITEM_BYTES, Op, Part, Program

PRODUCTS = frozenset({"dot_general", "convolution"})
# Operations that do no work of their own.
_IDLE = frozenset({"constant", "iota", "optimization_barrier", "loop_carry", "branch"})


@dataclass(frozen=True)
class Tensor:
    """An operand or result as the cost sees it. `counted`: it crosses memory here."""

    shape: tuple[int, ...]
    dtype: str
    groups: Groups
    counted: bool

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class Row:
    """`count` operations that cost the same.

    Attributes:
      count: how often the row runs in one step, loops included.
      part: what needs no batch counts as forward.
      contracted: as `Op.contracted`.
      whole: (index into operands + results, dim) pairs that must be gathered here before the row can run.
      again: operands that a product before this one read: where they have to be gathered, they are already.
      gradient: its partial sums are gradients: no other part of the step waits for them but the update.
    """

    name: str
    part: Part
    flops: int
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    contracted: tuple[tuple[int, int], ...]
    whole: tuple[tuple[int, int], ...]
    gradient: bool
    count: int = 1
    again: frozenset[int] = frozenset()

    @property
    def groups(self) -> frozenset[int]:
        """Every group with a dim in one of its tensors."""
        return frozenset(g for t in (*self.operands, *self.results) for g in t.groups if g is not None)

    @property
    def dtype(self) -> str:
        """The dtype that it computes in: the widest of its floating-point tensors, else the first result's."""
        tensors = (*self.operands, *self.results)
        floats = [t for t in tensors if t.dtype.startswith(("float", "bfloat", "complex"))]
        return max(floats, key=lambda t: t.item_bytes).dtype if floats else tensors[-1].dtype


def rows_of(program: Program, traffic: Traffic) -> list[Row]:
    """The rows of a program; operations without any cost are left out."""
    gathered: set[tuple[int, int]] = set()
    multiplied: set[int] = set()
    counts: Counter[Row] = Counter()
    for i, op in enumerate(program.ops):
        if op.name in _IDLE:
            continue
        whole = _first_gathers(op, gathered)
        operands = _tensors(program, op.operands, traffic.reads[i])
        results = _tensors(program, op.results, traffic.writes[i])
        if not (op.flops or op.contracted or whole or any(t.counted for t in (*operands, *results))):
            continue
        gradient = op.part == "backward" and bool(op.contracted)
        part = "forward" if op.part == "constant" else op.part
        again: frozenset[int] = frozenset()
        if op.name in PRODUCTS:
            again = frozenset(position for position, value in enumerate(op.operands) if value in multiplied)
            multiplied.update(op.operands)
        row = Row(op.name, part, op.flops, operands, results, op.contracted, whole, gradient, again=again)
        counts[row] += op.times
    return [replace(row, count=count) for row, count in counts.items()]


def _first_gathers(op: Op, gathered: set[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """What this operation needs whole and none before it did: a tensor is gathered once."""
    pairs = []
    tensors = (*op.operands, *op.results)
    for value, dim in op.whole:
        if value in op.results or (value, dim) not in gathered:
            pairs.append((tensors.index(value), dim))
        gathered.add((value, dim))
    return tuple(pairs)


def _tensors(program: Program, values: tuple[int, ...], counted: tuple[bool, ...]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(program.values[v].shape, program.values[v].dtype, program.dim_groups[v], c)
        for v, c in zip(values, counted, strict=True)
    )
