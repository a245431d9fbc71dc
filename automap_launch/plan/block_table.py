"""`BlockTable`: prices by block of all plans with one mesh a stage and one number of micro-batches.

A row is priced for one micro-batch (`rows.micro_row`), once for each way to shard its own groups. What the blocks of a
plan cost is then one matrix product: how often each block runs each row, times the rows' prices.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import Kind, alpha_beta
from automap_launch.plan.block_costs import HELD, MICRO_PHASES, PHASES, BlockCosts, Joined, TiedParameter
from automap_launch.plan.block_memory import BlockMemory
from automap_launch.plan.cases import BOTH, Case, Collective, case_of, gather_case
from automap_launch.plan.decision import STORAGES, Decision, Storage
from automap_launch.plan.group_bounds import ROWS, GroupBounds
from automap_launch.plan.pricing import OPTIMIZER, OTHER, PARAMETERS, RowSets, StepArgument
from automap_launch.plan.rows import Row, micro_row
from automap_launch.plan.sharding import DATA, MODEL, spec_of, storage_spec
from automap_launch.plan.table import MeshTable
from automap_launch.program.batch_analysis import Shares
from automap_launch.program.program import Program

Array = npt.NDArray[np.float64]

# Collectives over the data axis that the compiler joins, and whether they run after the micro-batches.
_JOINED: dict[Kind, bool] = {"all_gather": False, "all_reduce": True, "reduce_scatter": True}
_JOINED_KINDS = tuple(_JOINED)

# Columns of a row's or argument's price.
_SECONDS = slice(0, len(PHASES))
_COLLECTIVES = slice(_SECONDS.stop, _SECONDS.stop + len(PHASES))
_SIZES = slice(_COLLECTIVES.stop, _COLLECTIVES.stop + len(_JOINED))
_COUNTS = slice(_SIZES.stop, _SIZES.stop + len(_JOINED))
_HELD = slice(_COUNTS.stop, _COUNTS.stop + len(HELD))
_WIDTH = _HELD.stop
_HELD_COLUMN = {PARAMETERS: "parameters", OPTIMIZER: "optimizer", OTHER: "other"}

# Sums of low-precision gradients are kept in 32 bits.
_SUM_BYTES = 4
_CASES = 1024  # kept at a time


@dataclass(frozen=True)
class Member:
    """A row, or the arguments of one shape. `flops`: of one run. `phase`: when it runs (see `PHASES`). `collectives`:
    each with its own phase."""

    flops: float
    phase: str
    collectives: tuple[tuple[str, Collective], ...]


class BlockTable:
    """All plans of one mesh (`data` x `model` devices a stage), number of micro-batches and number of stages.

    Args:
      on_mesh: of the same mesh.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        sets: RowSets,
        memory: BlockMemory,
        on_mesh: MeshTable,
        *,
        micro_batches: int,
        stages: int,
    ) -> None:
        self._program = program
        self._cluster = cluster
        self._row_sets = sets
        self._memory = memory
        self._on_mesh = on_mesh
        self._mesh = on_mesh.mesh
        self._micro_batches = micro_batches
        self._devices = math.prod(self._mesh.values())
        self._speed = min(cluster.curves.alone_speedup, cluster.devices / (self._devices * stages))
        self._lengths = np.array([len(r) + len(a) for r, a in zip(sets.rows, sets.arguments, strict=True)])
        self._within = np.concatenate([np.arange(n) for n in self._lengths]) if len(self._lengths) else np.zeros(0, int)
        self.times = self._block_times()
        self._tied_readers: dict[int, list[int]] = {}
        for number, block in enumerate(program.blocks if stages > 1 else ()):
            for parameter in block.tied:
                self._tied_readers.setdefault(parameter, []).append(number)
        self._starts = np.full(on_mesh.places, -1, dtype=np.int64)
        self._prices = np.zeros((1024, _WIDTH))
        self._filled = 0
        self._row_prices_known: dict[tuple[int, tuple[int, ...], bool], list[Array]] = {}
        self._micro_rows: dict[int, Row] = {}
        self._costs: OrderedDict[tuple[frozenset[int], str], BlockCosts] = OrderedDict()
        joined = [alpha_beta(cluster, self._mesh, DATA, kind) for kind in _JOINED]
        self._alpha, self._beta = (np.array(column) for column in zip(*joined, strict=True))

    def costs(self, decision: Decision) -> BlockCosts:
        """Costs by block of a decision, whatever its cuts and its schedule."""
        key = (decision.sharded, decision.storage)
        if key in self._costs:
            self._costs.move_to_end(key)
            return self._costs[key]
        found = self._work_out(decision)
        self._costs[key] = found
        if len(self._costs) > _CASES:
            self._costs.popitem(last=False)
        return found

    def bounds(self, storage: Storage) -> GroupBounds:
        """Lower bounds of all blocks together, over the sets of groups that are sharded."""
        level = STORAGES.index(storage)
        times = self.times.sum(axis=0)
        ends = np.cumsum(self._lengths)
        tables = []
        for column, groups in enumerate(self._on_mesh.sets):
            own = times[ends[column] - self._lengths[column] : ends[column]]
            table = np.zeros((ROWS, 1 << len(groups)))
            for mask in range(1 << len(groups)):
                place = self._on_mesh.place(column, level, mask)
                if self._starts[place] < 0:
                    self._fill(column, place)
                start = self._starts[place]
                totals = own @ self._prices[start : start + len(own)]
                seconds = totals[_SECONDS] / self._speed + totals[_COLLECTIVES]
                micro, once = seconds[:MICRO_PHASES].sum(), seconds[MICRO_PHASES:].sum() + totals[_SIZES] @ self._beta
                table[:, mask] = self._micro_batches * micro + once, micro, totals[_HELD].sum()
            tables.append(table)
        return GroupBounds(self._on_mesh.sets, tuple(tables))

    def _work_out(self, decision: Decision) -> BlockCosts:
        rules, data = self._row_sets.rules, self._mesh[DATA]
        totals = self.times @ self._row_prices(decision)
        shares = self._on_mesh.shares([decision], self._micro_batches)[0]
        held = totals[:, _HELD]
        held[:, HELD.index("gradients")] += self._memory.stacks @ shares
        scattered = decision.storage != "none" and rules.reduce_scatter
        batch_parts = data * self._micro_batches if self._program.batch is not None else 1
        blocks = self._program.blocks
        return BlockCosts(
            cluster=self._cluster,
            micro_batches=self._micro_batches,
            devices=self._devices,
            compute=totals[:, _SECONDS] / self._speed,
            collectives=totals[:, _COLLECTIVES],
            joined=Joined(
                after=tuple(_JOINED.values()),
                bytes=totals[:, _SIZES],
                counts=totals[:, _COUNTS],
                alpha=self._alpha,
                beta=self._beta,
                bucket=rules.combine_bytes,
            ),
            held=held,
            residuals=self._memory.residuals @ shares,
            working=(self._memory.working @ shares).max(axis=1),
            boundary=np.array([b.boundary_bytes / batch_parts for b in blocks] or [0.0]),
            twice=rules.combine_bytes if data > 1 else 0.0,
            sums=1 / data if scattered else 1.0,
            tied=self._tied(self._on_mesh.axes(decision)),
        )

    def _row_prices(self, decision: Decision) -> Array:
        """float64[rows and arguments of all sets, _WIDTH]."""
        where = self._on_mesh.places_of([decision])[0]
        for column in np.nonzero(self._starts[where] < 0)[0]:
            self._fill(int(column), int(where[column]))
        prices: Array = self._prices[np.repeat(self._starts[where], self._lengths) + self._within]
        return prices

    def _fill(self, column: int, place: int) -> None:
        axes, storage = self._on_mesh.assignment(column, place)
        # Of a row it only matters whether anything is stored sharded, not what.
        key = (column, tuple(axes), storage > 0)
        if key not in self._row_prices_known:
            priced = [self._price_row(row, axes, storage) for row in self._row_sets.rows[column]]
            self._row_prices_known[key] = priced
        rows = list(self._row_prices_known[key])
        rows += [self._price_argument(argument, axes, storage) for argument in self._row_sets.arguments[column]]
        while self._filled + len(rows) > len(self._prices):
            self._prices = np.concatenate([self._prices, np.zeros_like(self._prices)])
        self._prices[self._filled : self._filled + len(rows)] = rows
        self._starts[place] = self._filled
        self._filled += len(rows)

    def _block_times(self) -> Array:
        """float64[blocks, rows and arguments]: how often each block has them."""
        shares: list[Shares] = []
        for rows, arguments in zip(self._row_sets.rows, self._row_sets.arguments, strict=True):
            shares += [row.blocks for row in rows]
            shares += [argument.blocks for argument in arguments]
        times = np.zeros((max(1, len(self._program.blocks)), len(shares)))
        for k, own in enumerate(shares):
            for block, count in own:
                times[block, k] = count
        return times

    def members(self, decision: Decision) -> Iterator[Member]:
        """Everything that costs, as one device of a stage runs it; in the order of `times`."""
        where = self._on_mesh.places_of([decision])[0]
        for column, place in enumerate(where):
            axes, storage = self._on_mesh.assignment(column, int(place))
            for row in self._row_sets.rows[column]:
                case, phase = self._case(row, axes, storage)
                yield Member(case.flops, phase, tuple(_placed(case, phase, once=row.once)))
            for argument in self._row_sets.arguments[column]:
                yield Member(0.0, "before", tuple(("before", g) for g in self._gathers(argument, axes, storage)))

    def _case(self, row: Row, axes: Mapping[int, str], storage: int) -> tuple[Case, str]:
        """One run of a row for one micro-batch, and its phase."""
        micro = self._micro_rows.get(id(row))
        if micro is None:  # rows live as long as their sets do
            micro = self._micro_rows[id(row)] = micro_row(row, self._program.batch, self._micro_batches)
        case = case_of(micro, axes, self._mesh, self._row_sets.rules, scattered=storage > 0)
        return case, _phase(row, self._program.batch)

    def _price_row(self, row: Row, axes: Mapping[int, str], storage: int) -> Array:
        columns = np.zeros(_WIDTH)
        case, phase = self._case(row, axes, storage)
        columns[PHASES.index(phase)] = self._row_sets.seconds(row, case)
        for when, collective in _placed(case, phase, once=row.once):
            self._add(columns, when, collective)
        return columns

    def _add(self, columns: Array, phase: str, collective: Collective) -> None:
        kind = collective.kind
        if is_joined(collective):
            columns[_SIZES.start + _JOINED_KINDS.index(kind)] += collective.size
            columns[_COUNTS.start + _JOINED_KINDS.index(kind)] += 1
            return
        alpha, beta = alpha_beta(self._cluster, self._mesh, collective.axis, kind)
        columns[_COLLECTIVES.start + PHASES.index(phase)] += alpha * collective.wait + beta * collective.size

    def _gathers(self, argument: StepArgument, axes: Mapping[int, str], storage: int) -> tuple[Collective, ...]:
        """The gathering of parameters that are stored, or were updated, sharded over the data axis."""
        if storage == 0 or argument.column != PARAMETERS:
            return ()
        return gather_case(argument.tensor, axes, self._mesh, self._row_sets.rules).collectives

    def _price_argument(self, argument: StepArgument, axes: Mapping[int, str], storage: int) -> Array:
        columns, tensor = np.zeros(_WIDTH), argument.tensor
        compute = spec_of(tensor.groups, tensor.shape, axes, self._mesh)
        stored = storage_spec(compute, tensor.shape, self._mesh) if storage >= argument.stored_from else compute
        size = math.prod(tensor.shape)
        held = _HELD_COLUMN[argument.column]
        columns[_HELD.start + HELD.index(held)] = size * tensor.item_bytes / self._parts(stored)
        if argument.column == PARAMETERS:
            columns[_HELD.start + HELD.index("gradients")] = (
                size * max(tensor.item_bytes, _SUM_BYTES) / self._parts(compute)
            )
        for gather in self._gathers(argument, axes, storage):
            self._add(columns, "before", gather)
            if storage >= argument.stored_from:
                columns[_HELD.start + HELD.index("other")] += gather.size
        return columns

    def _parts(self, spec: tuple[str | None, ...]) -> int:
        return math.prod(self._mesh[axis] for axis in spec if axis is not None)

    def _tied(self, axes: Mapping[int, str]) -> tuple[TiedParameter, ...]:
        found = []
        for parameter, blocks in self._tied_readers.items():
            value = self._program.arguments[parameter]
            tensor = self._program.values[value]
            spec = spec_of(self._program.dim_groups[value], tensor.shape, axes, self._mesh)
            size = tensor.bytes / self._parts(spec)
            link = self._cluster.link("network" if self._cluster.hosts > 1 else "host")
            found.append(TiedParameter(tuple(blocks), size, link.alpha_s + size * link.beta_s_per_byte))
        return tuple(found)


def is_joined(collective: Collective) -> bool:
    """Whether the compiler joins it with others of its kind: see `Joined`."""
    return collective.combinable and collective.axis == DATA and collective.kind in _JOINED


def _placed(case: Case, phase: str, *, once: bool) -> Iterator[tuple[str, Collective]]:
    """A row's collectives, each with the phase that it runs in."""
    for collective in case.collectives:
        parts = [collective]
        if collective.axis == BOTH:
            # A sum over both: over `model` for each micro-batch, over `data` once.
            parts = [replace(collective, axis=MODEL, combinable=False), replace(collective, axis=DATA)]
        for part in parts:
            # Sums over examples are added up on each device, and over devices once.
            late = part.axis == DATA and part.kind != "all_gather" and not once
            yield ("after" if late else phase), part


def _phase(row: Row, batch: int | None) -> str:
    if row.once:
        return "after" if row.part == "update" else "before"
    sums = [row.operands[position].groups[dim] for position, dim in row.contracted]
    if row.part == "backward" and batch is not None and batch in sums:
        return "weight"
    return row.part
