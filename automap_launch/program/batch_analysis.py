"""What the batch analysis finds: how each value depends on the batch, and so how a step runs in micro-batches.

Micro-batch `i` of `m` sees the i-th part of every batch value, the whole of every value without a batch dim, and runs
the same operations on smaller shapes. Nothing is rescaled: a mean over the batch has its 1/B in the module, so that
partial sums of the micro-batches add up to the value of the whole batch exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from automap_launch.errors import PlanError
from automap_launch.train_step import SourceLine

StateKind = Literal["none", "batch", "partial", "local", "full"]
Reduction = Literal["add", "max", "min"]


@dataclass(frozen=True, slots=True)
class State:
    """How a value depends on the batch.

    - `none`: not at all; each micro-batch sees the whole value.
    - `batch`: dim `dim` holds the examples. It is `outer` blocks, one after the other, in each of which the m
      micro-batches have equal, consecutive parts: the dim read as (outer, m, rest) is cut in its middle factor.
    - `partial`: the value of the whole batch is the `reduction` (sum, maximum, minimum) of the micro-batches' values.
      Booleans reduce by `max` (any) and `min` (all).
    - `local`: a statistic of the batch that each micro-batch takes of its own examples instead (batch norm, where the
      user allows it). Without a batch dim; different for each micro-batch.
    - `full`: needs the whole batch; computed after the last micro-batch.
    """

    kind: StateKind
    dim: int = 0
    outer: int = 1
    reduction: Reduction = "add"


NONE = State("none")
FULL = State("full")
LOCAL = State("local")


@dataclass(frozen=True, slots=True)
class Share:
    """An operand without batch state whose micro-batch's part is read: the dim read as (outer, m, rest), cut in the
    middle factor. `first`: part 0 whatever the micro-batch, for positions that count within it (`arange(B)` that
    addresses the batch dim itself)."""

    dim: int
    outer: int = 1
    first: bool = False


RefusalKind = Literal["statistic", "mixing", "loop", "opaque", "no batch"]


@dataclass(frozen=True)
class Refusal:
    """Why a step cannot run in several micro-batches exactly.

    Attributes:
      reason: in the user's words, one sentence, with the place where the value is made and where it is used.
      kind: `statistic` (a sum or extremum over the batch used for each example, as in batch norm), `mixing` (examples
        meet in another way), `loop` (steps within the step, a loop that runs as long as the data want), `opaque` (an
        operation that the analysis cannot look into), `no batch`.
      op: name of the operation at fault. source: the user's line.
      local_statistics: taking the statistic of each micro-batch by itself, where the user allows it
        (`search.allow_local_batch_stats`), would lift it.
    """

    reason: str
    kind: RefusalKind
    op: str = ""
    source: SourceLine | None = None
    local_statistics: bool = False

    @property
    def hint(self) -> str | None:
        """What the user may do about it."""
        if self.local_statistics:
            return "search.allow_local_batch_stats=true lets each micro-batch of a plan with one stage take its own"
        return None

    @property
    def error(self) -> PlanError:
        """The error that a plan ends with which asks for it all the same."""
        return PlanError(
            self.reason,
            hint=self.hint,
            file=self.source.file if self.source else None,
            line=self.source.line if self.source else None,
        )


class IndivisibleError(Exception):
    """A step cannot be written as a straight line, which is what parts are cut from."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


@dataclass(frozen=True)
class BatchAnalysis:
    """How a step runs in micro-batches.

    The *prologue* runs once, on the whole batch, before the first micro-batch; the *micro* operations run for each
    micro-batch; the *update* operations once, on whole values, after the last. Operations of state `none` (in none of
    the three) run wherever their values are read. Operation ids are indices of the analysed operations, in order.

    Attributes:
      arguments: states of the arguments that hold the batch, by argument index: how they are cut.
      states: by value id.
      shares: {(op id, operand position): share}: where a value without batch state is read in parts. For values with
        batch state it is the state that says how they are cut. Position 1 of a `loop_carry` stands for what the body
        hands on.
      prologue: ids of the operations that the prologue runs; they may be needed elsewhere as well.
      prologue_values: what the prologue hands on. Their states are `none`, or `batch` (cut for each micro-batch).
      micro, update: operation ids, ascending. An operation whose results are `local` may be in both: in the update it
        runs on what the micro-batches' values reduce to.
      accumulated: partial values that the update reads or the step returns: to be reduced over micro-batches.
      gathered: batch values that the update reads or the step returns, other than arguments and `prologue_values`: to
        be put together from micro-batches.
      local_values: partial sums that operations of state `batch` and `local` read as m times the micro-batch's own
        value (their 1/B is in the module); `accumulated` may list them as well.
      own: operations with partial results that read statistics which micro-batches take of their own.
      averaged: those of `own` that read nothing else over the batch: their results are means over micro-batches.
      max_micro_batches: the number of micro-batches must divide it (the parts must be equal); 1 where refused.
      refusals: why not more than one; empty where it may.
      one_stage: why the step cannot be cut into stages although it can run in micro-batches.
    """

    arguments: Mapping[int, State]
    states: tuple[State, ...]
    shares: Mapping[tuple[int, int], Share] = field(default_factory=dict)
    prologue: tuple[int, ...] = ()
    prologue_values: tuple[int, ...] = ()
    micro: tuple[int, ...] = ()
    update: tuple[int, ...] = ()
    accumulated: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()
    local_values: tuple[int, ...] = ()
    own: frozenset[int] = frozenset()
    averaged: frozenset[int] = frozenset()
    max_micro_batches: int = 1
    refusals: tuple[Refusal, ...] = ()
    one_stage: Refusal | None = None


@dataclass(frozen=True)
class Block:
    """A run of the forward part between two places where few bytes cross; a pipeline stage is a run of blocks.

    Backward operations follow the forward operations whose values they read, updates their parameter. Sizes are of the
    whole batch; a loop's are those of its iterations in the block.

    Attributes:
      ops: forward operation ids outside of loops that are cut, ascending.
      loops: (loop id, first iteration, one past the last): parts of loops over layers, whose operations stand once in
        the program, with `Op.loop` the loop's id.
      flops, backward_flops: of one step.
      parameters: indices of arguments (see `Program.parameters`) that it reads.
      parameter_bytes: of those, in the first block that reads them; of stacked ones the iterations' slices.
      state_bytes: of the optimizer state that is updated with these parameters.
      residual_bytes: made here and read by the backward part.
      boundary_bytes: that cross from this block, and those before it, to later ones in the forward part; 0 for the
        last.
      tied: of `parameters`, those that other blocks read too (tied embeddings; what every iteration of a loop reads).
    """

    ops: tuple[int, ...]
    loops: tuple[tuple[int, int, int], ...]
    flops: int
    backward_flops: int
    parameters: tuple[int, ...]
    parameter_bytes: int
    state_bytes: int
    residual_bytes: int
    boundary_bytes: int
    tied: tuple[int, ...] = ()


# (block, share) pairs, in the order of blocks; the shares add up to 1.
Shares = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Homes:
    """The blocks of a program that operations and arguments belong to.

    Attributes:
      ops: by operation. A forward operation is in its own block; a backward one in that whose forward values it reads;
        an update, and what is made of parameters alone, where the parameters are. A loop over layers is shared by the
        blocks of its iterations.
      arguments: by argument. A parameter is in the first block that reads it; state with the parameter that it is
        updated with; a batch argument in the first block that reads it; all else in block 0.
    """

    ops: tuple[Shares, ...] = ()
    arguments: tuple[Shares, ...] = ()
