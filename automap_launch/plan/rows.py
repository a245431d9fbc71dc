"""The program as a table of *rows*: operations that cost the same under every plan, counted instead of repeated.

A deep model repeats its layers, so tens of thousands of operations are a few hundred rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from automap_launch.plan.accumulation import shares_of_sums
from automap_launch.plan.fusing import copies_of
from automap_launch.plan.joining import waits_of
from automap_launch.plan.platforms import PlatformRules
from automap_launch.plan.sharding import Groups
from automap_launch.plan.traffic import Traffic
from automap_launch.program.batch_analysis import Shares
from automap_launch.program.program import ITEM_BYTES, Op, Part, Program

PARTS: tuple[Part, ...] = ("forward", "backward", "update")
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
      again: operands that a matrix product before this one read: where they have to be gathered, they are already.
        (XLA gathers the image of a convolution anew for its weights' gradient, as a rule.)
      gradient: its partial sums are gradients: no other part of the step waits for them but the update.
      once: it needs no batch, or is part of the update: it runs once a step however many micro-batches there are.
      blocks: of `count`, how much is in which block.
      wait: share of one wait for the other devices that its reductions have (`joining.py`).
      accumulated: share of its sums over the batch that is reduced where gradients are accumulated
        (`accumulation.py`).
    """

    name: str
    part: Part
    flops: float
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    contracted: tuple[tuple[int, int], ...]
    whole: tuple[tuple[int, int], ...]
    gradient: bool
    count: int = 1
    again: frozenset[int] = frozenset()
    once: bool = False
    blocks: Shares = ((0, 1.0),)
    wait: float = 1.0
    accumulated: float = 1.0

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


def rows_of(program: Program, traffic: Traffic, rules: PlatformRules) -> list[Row]:
    """The rows of a program; operations without any cost are left out."""
    gathered: set[tuple[int, int]] = set()
    multiplied: set[int] = set()
    counts: Counter[Row] = Counter()
    blocks: dict[Row, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    waits, accumulated = waits_of(program), shares_of_sums(program)
    copies = copies_of(program) if rules.copies_work else [1] * len(program.ops)
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
        if op.name == "dot_general":
            again = frozenset(position for position, value in enumerate(op.operands) if value in multiplied)
            multiplied.update(op.operands)
        once = op.part in ("constant", "update")
        flops = op.flops * copies[i]
        row = Row(op.name, part, flops, operands, results, op.contracted, whole, gradient, again=again, once=once)
        row = replace(row, wait=waits[i], accumulated=accumulated[i])
        counts[row] += op.times
        for block, share in program.homes.ops[i] if program.homes.ops else ((0, 1.0),):
            blocks[row][block] += share * op.times
    return [replace(row, count=count, blocks=tuple(blocks[row].items())) for row, count in counts.items()]


def micro_row(row: Row, batch: int | None, micro_batches: int) -> Row:
    """What one micro-batch runs of a row: the dim that holds the batch is `micro_batches` times smaller."""
    if micro_batches == 1 or batch is None or row.once:
        return row
    operands = tuple(_micro_tensor(t, batch, micro_batches) for t in row.operands)
    results = tuple(_micro_tensor(t, batch, micro_batches) for t in row.results)
    smaller = (operands, results) != (row.operands, row.results)
    return replace(row, operands=operands, results=results, flops=row.flops / (micro_batches if smaller else 1))


def _micro_tensor(tensor: Tensor, batch: int, micro_batches: int) -> Tensor:
    for dim, group in enumerate(tensor.groups):
        if group == batch and tensor.shape[dim] % micro_batches == 0:
            size = tensor.shape[dim] // micro_batches
            return replace(tensor, shape=(*tensor.shape[:dim], size, *tensor.shape[dim + 1 :]))
    return tensor


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
