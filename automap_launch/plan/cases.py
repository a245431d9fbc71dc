"""What one row costs under one assignment of its groups to mesh axes: the sharding rules of the SPMD partitioner.

Every tensor is sharded as its groups say. From that follows, for each axis:
- a contracted dim that is sharded leaves a partial sum, which is all-reduced on the spot (to a scattered result where
  the result itself is sharded over the axis);
- a dim that the operation needs whole is gathered first;
- where one operand is sharded and its partner cannot be, because the axis already shards another of its dims, the
  operand is gathered;
- where the gradient of an embedding is sharded by rows over the model axis and stored by columns over the data axis
  (ZeRO), the rows that devices have for it are exchanged, not summed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from automap_launch.cluster.collectives import Kind
from automap_launch.plan.layout import Spec
from automap_launch.plan.platforms import PlatformRules
from automap_launch.plan.rows import PRODUCTS, Row, Tensor
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
    """Cost of one run of a row on one device: operations, bytes that cross its memory, collectives, and the matrix
    product that it is, if it is one."""

    flops: float
    bytes: float
    collectives: tuple[Collective, ...]
    product: Product | None = None


class _Sharded:
    """A row's tensors under one assignment."""

    def __init__(self, row: Row, axes: Mapping[int, str], mesh: Mapping[str, int], rules: PlatformRules) -> None:
        self.row = row
        self.mesh = mesh
        self.rules = rules
        self.axes = axes
        self.operands = [spec_of(t.groups, t.shape, axes, mesh) for t in row.operands]
        self.results = [spec_of(t.groups, t.shape, axes, mesh) for t in row.results]

    def wire_bytes(self, tensor: Tensor, spec: Spec, without: str | None = None) -> float:
        """Bytes of a device's part of a tensor in a collective, as if `without` did not shard it."""
        item = self.rules.wire_bytes.get(tensor.dtype, tensor.item_bytes)
        parts = math.prod(self.mesh[axis] for axis in spec if axis is not None and axis != without)
        return math.prod(tensor.shape) * item / parts

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
    state = _Sharded(row, axes, mesh, rules)
    collectives: list[Collective] = []
    pending: list[str] = []
    divided = 1
    for axis in (DATA, MODEL):
        if mesh[axis] == 1:
            continue
        partial = _partial_over(state, axis)
        collectives += _gathers(state, axis, partial)
        if partial:
            pending.append(axis)
        if partial or any(axis in spec for spec in state.results):
            divided *= mesh[axis]
    if pending:
        collectives += _reductions(state, pending, scattered)
    shards = 1
    if scattered and row.part == "update" and _scatters(state):
        shards = mesh[DATA]
    summed_over = math.prod(mesh[axis] for axis in pending)
    product = product_of(row, state.results[0], mesh, summed_over) if row.results else None
    return Case(row.flops / divided / shards, _memory_bytes(state) / shards, tuple(collectives), product)


def gather_case(tensor: Tensor, axes: Mapping[int, str], mesh: Mapping[str, int], rules: PlatformRules) -> Case:
    """Gathering a parameter that is stored, or was updated, sharded over the data axis (ZeRO)."""
    spec = spec_of(tensor.groups, tensor.shape, axes, mesh)
    if storage_spec(spec, tensor.shape, mesh) == spec:
        return Case(0.0, 0.0, ())
    size = math.prod(tensor.shape) * tensor.item_bytes / math.prod(mesh[a] for a in spec if a is not None)
    return Case(0.0, 0.0, (Collective("all_gather", DATA, size, combinable=True),))


def _partial_over(state: _Sharded, axis: str) -> bool:
    """Whether the row sums over dims that are sharded over the axis."""
    row = state.row
    sharded = [(p, d) for p, d in row.contracted if state.operands[p][d] == axis]
    if row.name not in PRODUCTS or len(row.contracted) < 2:
        return bool(sharded)
    # Both sides of a product must be cut alike, else the one that is cut has to be gathered.
    return {0, 1} <= {p for p, _ in sharded}


def _gathers(state: _Sharded, axis: str, partial: bool) -> list[Collective]:
    """What must be gathered over the axis before the row can run."""
    row = state.row
    specs = [*state.operands, *state.results]
    tensors = [*row.operands, *row.results]
    gathered = {index for index, dim in row.whole if specs[index][dim] == axis}
    if row.name in PRODUCTS and len(state.operands) >= 2:
        left, right = (axis in state.operands[0], axis in state.operands[1])
        contracted = [p for p, d in row.contracted if state.operands[p][d] == axis]
        if contracted and not partial:
            gathered.update(contracted)
        elif left and right and not contracted and state.on_axis(row.results[0], axis) > 1:
            # The result is sharded as one of them is: the other one is gathered.
            kept = state.group_on(row.results[0], state.results[0], axis)
            gathered.add(1 if state.group_on(row.operands[0], state.operands[0], axis) == kept else 0)
        gathered -= row.again
    return [
        Collective("all_gather", axis, state.wire_bytes(tensors[index], specs[index], without=axis))
        for index in sorted(gathered)
    ]


def _reductions(state: _Sharded, pending: list[str], scattered: bool) -> list[Collective]:
    """The partial sums of the row over the axes `pending`, made whole."""
    row = state.row
    found = []
    for tensor, spec in zip(row.results, state.results, strict=True):
        for axes in [pending] if not any(a in spec for a in pending) else [[a] for a in pending]:
            axis = BOTH if len(axes) == 2 else axes[0]
            kept_whole = axis not in spec
            size = state.wire_bytes(tensor, spec, without=axis)
            if scattered and row.gradient and axis == DATA and _exchanges_rows(state):
                rows = state.wire_bytes(row.operands[-1], state.operands[-1])
                found.append(Collective("all_to_all", axis, rows))
                continue
            to_shards = (not kept_whole) or (scattered and row.gradient and axis == DATA)
            kind: Kind = "reduce_scatter" if to_shards and state.rules.reduce_scatter else "all_reduce"
            found.append(Collective(kind, axis, size, combinable=row.gradient and DATA in axes, wait=row.wait))
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
    tensors, specs = (*state.row.operands, *state.row.results), (*state.operands, *state.results)
    return any(storage_spec(spec, t.shape, state.mesh) != spec for t, spec in zip(tensors, specs, strict=True))


def _memory_bytes(state: _Sharded) -> float:
    row = state.row
    read = sum(_local_bytes(state, t, s) for t, s in zip(row.operands, state.operands, strict=True) if t.counted)
    written = sum(_local_bytes(state, t, s) for t, s in zip(row.results, state.results, strict=True) if t.counted)
    if row.name == "dynamic_update_slice":
        # In place: only the part that is replaced is written.
        return read + _local_bytes(state, row.operands[1], state.operands[1])
    if row.name in ("gather", "dynamic_slice", "slice"):
        return read + written + _local_bytes(state, row.results[0], state.results[0])
    return read + written


def _local_bytes(state: _Sharded, tensor: Tensor, spec: Spec) -> float:
    parts = math.prod(state.mesh[axis] for axis in spec if axis is not None)
    return math.prod(tensor.shape) * tensor.item_bytes / parts
