"""What one row costs under one assignment of its groups to mesh axes: the sharding rules of the SPMD partitioner.

Every tensor is sharded as its groups say. From that follows, for each axis:
- a contracted dim that is sharded leaves a partial sum, which is all-reduced on the spot (to a scattered result where
  the result itself is sharded over the axis);
- a dim that the operation needs whole is gathered first;
- a gathered tensor arrives with the gathered dim outermost: where that was not its first one, a product reads a copy
  whose dims are in order;
- where one operand is sharded and its partner cannot be, because the axis already shards another of its dims, the
  operand is gathered;
- where the gradient of an embedding is sharded by rows over the model axis and stored by columns over the data axis
  (ZeRO), the rows that devices have for it are exchanged, not summed.

Which of this happens depends on the sizes of the axes only by which dims they divide. So a `Pattern` says it once for
all meshes and numbers of micro-batches that divide the same dims, and a `Case` is a pattern on one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from automap_launch.cluster.collectives import Kind
from automap_launch.plan.layout import Spec
from automap_launch.plan.platforms import PlatformRules
from automap_launch.plan.quantity import Array, Quantity, divisors, over, over_spec
from automap_launch.plan.rows import PRODUCTS, Row, Tensor, micro_row
from automap_launch.plan.sharding import DATA, MODEL, spec_of, storage_spec
from automap_launch.plan.speed import Product, product_of

BOTH = f"{DATA}+{MODEL}"
AXES = (DATA, MODEL, BOTH)


@dataclass(frozen=True)
class Collective:
    """One collective. `size` in bytes as `cluster/collectives.py` defines it for each kind.

    `combinable`: nothing waits for it at once, so the compiler joins it with others of its kind. `wait`: its share of
    one wait for the other devices, where it runs together with others.
    """

    kind: Kind
    axis: str
    size: float
    combinable: bool = False
    wait: float = 1.0


@dataclass(frozen=True)
class Case:
    """Cost of one run of a row on one device: operations, bytes that cross its memory, collectives, bytes that copies
    which put dims in order move, and the matrix product that it is, if it is one."""

    flops: float
    bytes: float
    collectives: tuple[Collective, ...]
    relaid: float = 0.0
    product: Product | None = None


@dataclass(frozen=True)
class Wire:
    """One collective of a pattern; see `Collective`."""

    kind: Kind
    axis: str
    size: Quantity
    combinable: bool = False
    wait: float = 1.0

    def at(self, divided_by: Array) -> Collective:
        return Collective(self.kind, self.axis, self.size.at(divided_by), self.combinable, self.wait)


@dataclass(frozen=True)
class Pattern:
    """A row's `Case` on every mesh and number of micro-batches that divide the same dims.

    Attributes:
      bytes: their sum. relaid: likewise, what copies that put dims in order move besides.
      result: sharding of the first result. summed: axes over which contracted dims are divided.
    """

    flops: Quantity
    bytes: tuple[Quantity, ...]
    collectives: tuple[Wire, ...]
    relaid: tuple[Quantity, ...] = ()
    result: Spec | None = None
    summed: tuple[str, ...] = ()

    def at(self, divided_by: Array) -> Case:
        """The case, its product apart. Args: divided_by: of `quantity.divisors`."""
        moved, relaid = (sum(q.at(divided_by) for q in quantities) for quantities in (self.bytes, self.relaid))
        collectives = tuple(wire.at(divided_by) for wire in self.collectives)
        return Case(self.flops.at(divided_by), moved, collectives, relaid)

    def product(self, micro: Row, mesh: Mapping[str, int]) -> Product | None:
        """The matrix product that one device computes. Args: micro: the row of one micro-batch."""
        if self.result is None:
            return None
        return product_of(micro, self.result, mesh, math.prod(mesh[axis] for axis in self.summed))


class _Sharded:
    """A row's tensors, those of one micro-batch, under one assignment. Tensors are numbered: operands, then results."""

    def __init__(
        self, whole: Row, micro: Row, axes: Mapping[int, str], mesh: Mapping[str, int], rules: PlatformRules
    ) -> None:
        self.row = micro
        self.mesh = mesh
        self.rules = rules
        self.axes = axes
        self.tensors = (*micro.operands, *micro.results)
        self.whole = (*whole.operands, *whole.results)
        specs = [spec_of(t.groups, t.shape, axes, mesh) for t in self.tensors]
        self.specs = specs
        self.operands, self.results = specs[: len(micro.operands)], specs[len(micro.operands) :]

    def wire_bytes(self, index: int, without: str | None = None) -> Quantity:
        """Bytes of a device's part of a tensor in a collective, as if `without` did not shard it."""
        tensor = self.whole[index]
        return self._part(index, self.rules.wire_bytes.get(tensor.dtype, tensor.item_bytes), without)

    def local_bytes(self, index: int, without: str | None = None) -> Quantity:
        """Bytes of a device's part of a tensor, as if `without` did not shard it."""
        return self._part(index, self.whole[index].item_bytes, without)

    def _part(self, index: int, item_bytes: int, without: str | None = None) -> Quantity:
        tensor, spec = self.whole[index], self.specs[index]
        smaller = tensor.shape != self.tensors[index].shape
        return Quantity(math.prod(tensor.shape) * item_bytes, over_spec(spec, without) + over(micro=smaller))

    def on_axis(self, tensor: Tensor, axis: str) -> int:
        """How many of a tensor's dims belong to groups on the axis."""
        return sum(1 for g in tensor.groups if g is not None and self.axes.get(g) == axis)

    @staticmethod
    def group_on(tensor: Tensor, spec: Spec, axis: str) -> int | None:
        """The group of the dim that the axis shards."""
        return tensor.groups[spec.index(axis)]


def case_of(
    row: Row, axes: Mapping[int, str], mesh: Mapping[str, int], rules: PlatformRules, scattered: bool = False
) -> Case:
    """The cost of one run of `row`.

    Args:
      axes: the axis of each group that is on one.
      mesh: size by axis.
      scattered: the optimizer's state is stored sharded over the data axis, and the update part works on shards.
    """
    pattern = pattern_of(row, axes, mesh, rules, scattered)
    return replace(pattern.at(divisors(mesh)), product=pattern.product(row, mesh))


def pattern_of(
    row: Row,
    axes: Mapping[int, str],
    mesh: Mapping[str, int],
    rules: PlatformRules,
    scattered: bool = False,
    *,
    batch: int | None = None,
    micro_batches: int = 1,
) -> Pattern:
    """The pattern of one run of `row` for one of `micro_batches` micro-batches.

    Args:
      axes, mesh, scattered: as in `case_of`.
      batch: the group that micro-batches cut.
    """
    micro = micro_row(row, batch, micro_batches)
    state = _Sharded(row, micro, axes, mesh, rules)
    collectives: list[Wire] = []
    relaid: list[Quantity] = []
    pending: list[str] = []
    divided = over(micro=micro.flops != row.flops)
    for axis in (DATA, MODEL):
        if mesh[axis] == 1:
            continue
        partial = _partial_over(state, axis)
        gathered = _gathered(state, axis, partial)
        collectives += [
            Wire("all_gather", axis, state.wire_bytes(index, without=axis))
            for index in sorted(gathered)
            if row.name not in PRODUCTS or index not in row.again
        ]
        relaid += [moved for index in sorted(gathered) for moved in _relaid(state, index, axis)]
        if partial:
            pending.append(axis)
        if partial or any(axis in spec for spec in state.results):
            divided += over_spec((axis,))
    if pending:
        collectives += _reductions(state, pending, scattered)
    shards = over(data=scattered and row.part == "update" and _scatters(state))
    return Pattern(
        Quantity(row.flops, divided + shards),
        tuple(Quantity(moved.amount, moved.over + shards) for moved in _memory_bytes(state)),
        tuple(collectives),
        tuple(relaid),
        state.results[0] if row.results else None,
        tuple(pending),
    )


def gathers_of(tensor: Tensor, axes: Mapping[int, str], mesh: Mapping[str, int]) -> tuple[Wire, ...]:
    """Gathering a parameter that is stored, or was updated, sharded over the data axis (ZeRO)."""
    spec = spec_of(tensor.groups, tensor.shape, axes, mesh)
    if storage_spec(spec, tensor.shape, mesh) == spec:
        return ()
    size = Quantity(math.prod(tensor.shape) * tensor.item_bytes, over_spec(spec))
    return (Wire("all_gather", DATA, size, combinable=True),)


def _partial_over(state: _Sharded, axis: str) -> bool:
    """Whether the row sums over dims that are sharded over the axis."""
    row = state.row
    sharded = [(p, d) for p, d in row.contracted if state.operands[p][d] == axis]
    if row.name not in PRODUCTS or len(row.contracted) < 2:
        return bool(sharded)
    # Both sides of a product must be cut alike, else the one that is cut has to be gathered.
    return {0, 1} <= {p for p, _ in sharded}


def _gathered(state: _Sharded, axis: str, partial: bool) -> set[int]:
    """The tensors that must be whole over the axis before the row can run."""
    row = state.row
    gathered = {index for index, dim in row.whole if state.specs[index][dim] == axis}
    if row.name in PRODUCTS and len(state.operands) >= 2:
        left, right = (axis in state.operands[0], axis in state.operands[1])
        contracted = [p for p, d in row.contracted if state.operands[p][d] == axis]
        if contracted and not partial:
            gathered.update(contracted)
        elif left and right and not contracted and state.on_axis(row.results[0], axis) > 1:
            # The result is sharded as one of them is: the other one is gathered.
            kept = state.group_on(row.results[0], state.results[0], axis)
            gathered.add(1 if state.group_on(row.operands[0], state.operands[0], axis) == kept else 0)
    return gathered


def _relaid(state: _Sharded, index: int, axis: str) -> tuple[Quantity, ...]:
    """What the copy of a gathered operand of a product reads and writes."""
    if state.row.name not in PRODUCTS or index >= len(state.operands):
        return ()
    before = state.whole[index].shape[: state.specs[index].index(axis)]
    if math.prod(before) == 1:
        return ()
    return (state.local_bytes(index, without=axis),) * 2


def _reductions(state: _Sharded, pending: list[str], scattered: bool) -> list[Wire]:
    """The partial sums of the row over the axes `pending`, made whole."""
    row = state.row
    found = []
    for index, spec in enumerate(state.results, start=len(row.operands)):
        for axes in [pending] if not any(a in spec for a in pending) else [[a] for a in pending]:
            axis = BOTH if len(axes) == 2 else axes[0]
            kept_whole = axis not in spec
            size = state.wire_bytes(index, without=axis)
            if scattered and row.gradient and axis == DATA and _exchanges_rows(state):
                found.append(Wire("all_to_all", axis, state.wire_bytes(len(row.operands) - 1)))
                continue
            to_shards = (not kept_whole) or (scattered and row.gradient and axis == DATA)
            kind: Kind = "reduce_scatter" if to_shards and state.rules.reduce_scatter else "all_reduce"
            found.append(Wire(kind, axis, size, combinable=row.gradient and DATA in axes, wait=row.wait))
    return found


def _exchanges_rows(state: _Sharded) -> bool:
    """Whether a scatter's result is stored sharded over the data axis by a dim that its updates have too, and sharded
    over the model axis by one that they have not.

    A device then needs all updates' columns of its own, and picks the rows that fall into its part.
    """
    if state.row.name != "scatter":
        return False
    result, spec = state.row.results[0], state.results[0]
    stored = storage_spec(spec, result.shape, state.mesh)
    if stored == spec or MODEL not in spec:
        return False
    columns = set(state.row.operands[-1].groups) - {None}
    return result.groups[stored.index(DATA)] in columns and result.groups[spec.index(MODEL)] not in columns


def _scatters(state: _Sharded) -> bool:
    """Whether an operation of the update part works on tensors that are stored sharded over the data axis."""
    pairs = zip(state.tensors, state.specs, strict=True)
    return any(storage_spec(spec, t.shape, state.mesh) != spec for t, spec in pairs)


def _memory_bytes(state: _Sharded) -> list[Quantity]:
    row, first_result = state.row, len(state.row.operands)
    read = [state.local_bytes(i) for i, t in enumerate(row.operands) if t.counted]
    if row.name == "dynamic_update_slice":
        # In place: only the part that is replaced is written.
        return [*read, state.local_bytes(1)]
    written = [state.local_bytes(first_result + i) for i, t in enumerate(row.results) if t.counted]
    if row.name in ("gather", "dynamic_slice", "slice"):
        written.append(state.local_bytes(first_result))
    return read + written
