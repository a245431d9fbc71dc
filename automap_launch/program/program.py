"""`Program`: a `TrainStep` as an SSA graph that can be analysed. Pure data; no device, no front end.

Vocabulary: a *dim* is of a tensor, an *axis* is of a device mesh. A linkage *group* is a set of dims that must be
partitioned alike (Auto-MAP, section on task-specific pruning); it is the unit of decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from automap_launch.program.batch_analysis import BatchAnalysis, Block, Homes
from automap_launch.train_step import SourceLine, TrainStep

Part = Literal["forward", "backward", "update", "constant"]
GroupKind = Literal["batch", "parameter", "activation"]

ITEM_BYTES = {
    "bool": 1, "int4": 1, "uint4": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
    "int64": 8, "uint64": 8, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor: its shape and its dtype by numpy's name. 8-bit floats are named as ml_dtypes names them."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * ITEM_BYTES.get(self.dtype, 1)

    @property
    def is_float(self) -> bool:
        """A float or complex tensor: what gradients and activations are."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
      name: StableHLO's, without its dialect (`dot_general`), and two more. `loop_carry`: a value that a loop carries,
        as its body sees it (operand: the initial value); the loop's result is what its body hands on. `branch`: a
        result of a case (operands: the index, then each branch's value; the operations of all branches are listed).
      operands, results: value ids.
      times: how often it runs in one step (the product of the trip counts of the loops around it).
      flops: of one run on whole tensors.
      contracted: (operand position, dim) pairs whose sharding leaves the results a partial sum; both operands of a
        dot are listed.
      whole: (value id, dim) pairs that must not be sharded when this op runs (a sorted dim, a spatial dim).
      fusable: elementwise or data movement that a compiler fuses into its neighbours.
      loop: number of the outermost loop that it stands in; loops are numbered in the order in which the step comes to
        them.
      part: of the step; `constant` is what needs no batch data (a cast of a parameter, a step counter).
      source: the user's line it comes from, where known.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    times: int = 1
    flops: int = 0
    contracted: tuple[tuple[int, int], ...] = ()
    whole: tuple[tuple[int, int], ...] = ()
    fusable: bool = False
    loop: int | None = None
    part: Part = "forward"
    source: SourceLine | None = None


@dataclass(frozen=True)
class Group:
    """A linkage group, isomorphic groups of repeated layers tied into one.

    Attributes:
      id: its index in `Program.groups`; groups are ordered by `bytes`, largest first, the batch group before all.
      kind: `batch`, `parameter` (some parameter has a dim in it), or `activation`.
      sizes: the different sizes of its dims, ascending; an axis can shard it if it divides the gcd of all.
      members: paths of the parameters with a dim in it.
      dims: (value id, dim) pairs.
      bytes: of all tensors with a dim in it.
      tied: how many isomorphic groups it stands for.
    """

    id: int
    kind: GroupKind
    sizes: tuple[int, ...]
    members: tuple[str, ...]
    dims: tuple[tuple[int, int], ...]
    bytes: int
    tied: int = 1

    @property
    def divisor(self) -> int:
        """Greatest common divisor of its sizes: an axis must divide it."""
        return math.gcd(*self.sizes)


@dataclass(frozen=True)
class Program:
    """The step as a graph.

    Attributes:
      step: the captured step; `arguments` and `results` are in its order.
      values: by value id. ops: in an order in which they can run.
      arguments, results: value ids.
      parameters: argument indices that the forward part reads as trained state.
      groups: see `Group`. batch: the batch group's id, or None when the step has no batch.
      dim_groups: for each value, the group id of each dim, or None (size 1, or bound to stay whole). One group may
        stand at two dims of a value (the scores of self-attention, a square matrix between residual streams); a mesh
        axis shards the first of them that it divides.
      notes: what the analysis could not follow, with the user's line.
      batch_analysis: how the step runs in micro-batches; None where it was not analysed.
      blocks: the forward part between its candidate pipeline cuts, in order.
      homes: the blocks that operations and arguments belong to; empty where there are no blocks.
    """

    step: TrainStep
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    parameters: tuple[int, ...]
    groups: tuple[Group, ...]
    batch: int | None
    dim_groups: tuple[tuple[int | None, ...], ...]
    notes: tuple[str, ...] = ()
    batch_analysis: BatchAnalysis | None = None
    blocks: tuple[Block, ...] = ()
    homes: Homes = field(default_factory=Homes)
