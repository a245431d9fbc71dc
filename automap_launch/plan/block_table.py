"""`BlockTable`: prices by block of all plans with one mesh a stage and one number of micro-batches.

Rows are priced for one micro-batch, all of a plan at once (`patterns.py`). What the blocks of a plan cost is then one
matrix product: how often each block runs each row, times the rows' prices.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import KINDS, Kind, alpha_beta
from automap_launch.plan.block_bounds import BlockBounds
from automap_launch.plan.block_costs import HELD, MICRO_PHASES, PHASES, BlockCosts, Joined, TiedParameter
from automap_launch.plan.block_memory import BlockMemory
from automap_launch.plan.cases import AXES, BOTH, Case, Collective, gathers_of
from automap_launch.plan.decision import STORAGES, Decision, Storage
from automap_launch.plan.group_bounds import GroupBounds
from automap_launch.plan.lending import Layers
from automap_launch.plan.patterns import SUM_BYTES, PatternBook, Patterns, phase_of
from automap_launch.plan.quantity import Array
from automap_launch.plan.row_sets import StepArgument
from automap_launch.plan.sharding import DATA, MODEL, Groups, spec_of, storage_spec
from automap_launch.plan.table import MeshTable
from automap_launch.program.batch_analysis import Shares
from automap_launch.program.program import Program, Value
from automap_launch.program.stacks import Stack

# Collectives over the data axis that the compiler joins, and whether they run after the micro-batches.
_JOINED: dict[Kind, bool] = {"all_gather": False, "all_reduce": True, "reduce_scatter": True}
_JOINED_NUMBER = np.array([list(_JOINED).index(kind) if kind in _JOINED else -1 for kind in KINDS])
_DATA, _MODEL, _BOTH = (AXES.index(axis) for axis in (DATA, MODEL, BOTH))
_GATHER, _AFTER = KINDS.index("all_gather"), PHASES.index("after")

# Columns of a row's or argument's price.
_SECONDS = slice(0, len(PHASES))
_COLLECTIVES = slice(_SECONDS.stop, _SECONDS.stop + len(PHASES))
_SIZES = slice(_COLLECTIVES.stop, _COLLECTIVES.stop + len(_JOINED))
_COUNTS = slice(_SIZES.stop, _SIZES.stop + len(_JOINED))
_HELD = slice(_COUNTS.stop, _COUNTS.stop + len(HELD))
_WIDTH = _HELD.stop
_GRADIENTS, _WEIGHT = HELD.index("gradients"), PHASES.index("weight")
# To add a gradient to the sum so far both are read and the sum is written.
_PASSES_TO_ADD = 3
_CASES = 1024  # kept at a time


@dataclass(frozen=True)
class Member:
    """A row, or the arguments of one shape. `flops`: of one run; of arguments, to add a gradient to the sum so far.
    `phase`: when it runs (see `PHASES`). `collectives`: each with its own phase."""

    flops: float
    phase: str
    collectives: tuple[tuple[str, Collective], ...]


class BlockTable:
    """All plans of one mesh (`data` x `model` devices a stage), number of micro-batches and number of stages.

    Args:
      on_mesh: of the same mesh. stacks: `stacks_of(program)`.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        patterns: PatternBook,
        memory: BlockMemory,
        on_mesh: MeshTable,
        *,
        micro_batches: int,
        stages: int,
        stacks: Sequence[Stack] = (),
    ) -> None:
        self._program = program
        self._cluster = cluster
        self._row_sets = sets = patterns.sets
        self._patterns = patterns
        self._memory = memory
        self._on_mesh = on_mesh
        self._mesh = on_mesh.mesh
        self._micro_batches = micro_batches
        self._alone = stages == 1
        self._devices = math.prod(self._mesh.values())
        self._speed = min(cluster.curves.alone_speedup, cluster.devices / (self._devices * stages))
        self._lengths = np.array([len(r) + len(a) for r, a in zip(sets.rows, sets.arguments, strict=True)])
        self.times = self._block_times()
        self._times_of = np.split(self.times, np.cumsum(self._lengths)[:-1], axis=1)
        # What each block pays for a set of rows, by the number of the price's place: float64[numbers, blocks, _WIDTH].
        self._known: dict[int, int] = {}
        self._prices = np.zeros((0, len(self.times), _WIDTH))
        self._tied_readers: dict[int, list[int]] = {}
        for number, block in enumerate(program.blocks if stages > 1 else ()):
            for parameter in block.tied:
                self._tied_readers.setdefault(parameter, []).append(number)
        looped = {value for op in program.ops if op.times > 1 for value in op.operands}
        homes = program.homes.arguments or (((0, 1.0),),) * len(program.arguments)
        self._sliced = [(k, homes[k]) for k in program.parameters if program.arguments[k] in looped]
        # Of each stack its tensors, and how many of them are parameters, and how many the optimizer's state.
        self._alike = {stack: _alike(program, stack) for stack in (stacks if stages > 1 else ())}
        self._site = patterns.site(self._mesh, micro_batches)
        self._costs: OrderedDict[tuple[frozenset[int], str], BlockCosts] = OrderedDict()
        links = [[alpha_beta(cluster, self._mesh, axis, kind) for axis in AXES] for kind in KINDS]
        self._alpha, self._beta = np.moveaxis(np.array(links), -1, 0)

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
        patterns = self._patterns.all_of(
            self._site, self._on_mesh.sets, level, lambda: self._on_mesh.assignments(level)
        )
        times = np.split(self.times.sum(axis=0), np.cumsum(self._lengths)[:-1])
        subsets = [1 << len(groups) for groups in self._on_mesh.sets]
        often = np.concatenate([np.tile(own, count) for own, count in zip(times, subsets, strict=True)])
        starts = np.cumsum(patterns.lengths) - patterns.lengths
        totals = np.add.reduceat(often[:, None] * self._price(patterns), starts)
        seconds = totals[:, _SECONDS] / self._speed + totals[:, _COLLECTIVES]
        micro = seconds[:, :MICRO_PHASES].sum(axis=1)
        once = seconds[:, MICRO_PHASES:].sum(axis=1) + totals[:, _SIZES] @ self._joined(self._beta)
        rows = np.stack([self._micro_batches * micro + once, micro, totals[:, _HELD].sum(axis=1)])
        return GroupBounds(self._on_mesh.sets, self._on_mesh.by_set(rows))

    def block_bounds(self, storage: Storage) -> BlockBounds:
        """Lower bounds of each block, over the sets of groups that are sharded."""
        level, sets = STORAGES.index(storage), self._on_mesh.sets
        prices = self._price(
            self._patterns.all_of(self._site, self._on_mesh.sets, level, lambda: self._on_mesh.assignments(level))
        )
        # Of each phase what counts is compute and collectives together.
        prices[:, _SECONDS] = prices[:, _SECONDS] / self._speed + prices[:, _COLLECTIVES]
        prices[:, _COLLECTIVES] = 0.0
        ends = np.cumsum(self._lengths * [1 << len(groups) for groups in sets])
        by_set = np.split(prices, ends[:-1])
        tables = [
            own @ priced.reshape(-1, own.shape[1], _WIDTH) for own, priced in zip(self._times_of, by_set, strict=True)
        ]

        def finish(totals: Array, sharded: frozenset[int], undecided: frozenset[int]) -> BlockCosts:
            groups = self._on_mesh.carried(sharded) | undecided
            return self._block_costs(storage, totals, groups)

        return BlockBounds(sets, tuple(tables), finish)

    def _work_out(self, decision: Decision) -> BlockCosts:
        places = self._on_mesh.places_of([decision])[0].tolist()
        self._fill([(column, place) for column, place in enumerate(places) if place not in self._known])
        totals: Array = self._prices[[self._known[place] for place in places]].sum(axis=0)
        totals[:, _SECONDS] /= self._speed
        groups = self._on_mesh.carried(decision.sharded)
        found = self._block_costs(decision.storage, totals, groups)
        axes, level = self._on_mesh.axes_of(groups), STORAGES.index(decision.storage)
        return replace(found, stacks=tuple(self._layers(stack, found, axes, level) for stack in self._alike))

    def _block_costs(self, storage: Storage, totals: Array, groups: frozenset[int]) -> BlockCosts:
        """Args: totals: float64[blocks, _WIDTH]. groups: that the model axis shards."""
        rules, data = self._row_sets.rules, self._mesh[DATA]
        shares = self._on_mesh.shares_of(groups, storage, self._micro_batches)
        held = totals[:, _HELD]
        held[:, HELD.index("gradients")] += self._memory.stacks @ shares
        axes = self._on_mesh.axes_of(groups)
        if self._alone:
            held[:, HELD.index("other")] += self._slices(axes)
        scattered = storage != "none"
        together = float(self._on_mesh.reduced_together(shares[None])[0]) if scattered else rules.combine_bytes
        batch_parts = data * self._micro_batches if self._program.batch is not None else 1
        blocks = self._program.blocks
        return BlockCosts(
            cluster=self._cluster,
            micro_batches=self._micro_batches,
            devices=self._devices,
            compute=totals[:, _SECONDS],
            collectives=totals[:, _COLLECTIVES],
            joined=Joined(
                after=tuple(_JOINED.values()),
                bytes=totals[:, _SIZES],
                counts=totals[:, _COUNTS],
                alpha=self._joined(self._alpha),
                beta=self._joined(self._beta),
                bucket=rules.combine_bytes,
            ),
            held=held,
            residuals=self._memory.residuals @ shares,
            working=(self._memory.working @ shares).max(axis=1),
            boundary=np.array([b.boundary_bytes / batch_parts for b in blocks] or [0.0]),
            twice=together if data > 1 else 0.0,
            sums=1 / data if scattered and rules.reduce_scatter else 1.0,
            tied=self._tied(axes),
            recomputed=self._memory.recomputed @ shares,
        )

    def _fill(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Works out what each block pays for some sets of rows. Args: wanted: (set, place of its price)."""
        if not wanted:
            return
        assignments = [(column, *self._on_mesh.assignment(column, place)) for column, place in wanted]
        patterns = self._patterns.of(self._site, assignments)
        prices = np.split(self._price(patterns), np.cumsum(patterns.lengths)[:-1])
        first = len(self._known)
        if first + len(wanted) > len(self._prices):
            more = np.zeros((first + len(wanted), *self._prices.shape[1:]))
            self._prices = np.concatenate([self._prices, more])
        for number, ((column, place), own) in enumerate(zip(wanted, prices, strict=True), start=first):
            self._prices[number] = self._times_of[column] @ own
            self._known[place] = number

    def _price(self, patterns: Patterns) -> Array:
        """float64[items, _WIDTH]."""
        items, wires, holdings = patterns.items, patterns.wires, patterns.holdings
        columns = np.zeros((len(items), _WIDTH))
        columns[np.arange(len(items)), _SECONDS.start + items["phase"]] = self._patterns.seconds(self._site, patterns)
        # A sum over both axes: over `model` for each micro-batch, over `data` once.
        both = wires["axis"] == _BOTH
        parts = np.concatenate([wires, wires[both]])
        parts["axis"][: len(wires)][both], parts["combinable"][: len(wires)][both] = _MODEL, False
        parts["axis"][len(wires) :] = _DATA
        item, kind, axis = parts["item"], parts["kind"], parts["axis"]
        sizes = parts["size"] / self._site.divided_by[parts["over"]]
        # Sums over examples are added up on each device, and over devices once.
        late = (axis == _DATA) & (kind != _GATHER) & ~items["once"][item]
        if self._alone:
            sizes[late] *= items["accumulated"][item[late]]
        joined = parts["combinable"] & (axis == _DATA) & (_JOINED_NUMBER[kind] >= 0)
        numbers = _JOINED_NUMBER[kind[joined]]
        np.add.at(columns, (item[joined], _SIZES.start + numbers), sizes[joined])
        np.add.at(columns, (item[joined], _COUNTS.start + numbers), 1.0)
        seconds = self._alpha[kind, axis] * parts["wait"] + self._beta[kind, axis] * sizes
        phase = np.where(late, _AFTER, items["phase"][item])
        alone = ~joined
        np.add.at(columns, (item[alone], _COLLECTIVES.start + phase[alone]), seconds[alone])
        held = holdings["bytes"] / self._site.divided_by[holdings["over"]]
        np.add.at(columns, (holdings["item"], _HELD.start + holdings["use"]), held)
        if self._micro_batches > 1:
            added = holdings["use"] == _GRADIENTS
            seconds = _PASSES_TO_ADD * held[added] / self._cluster.device.memory_bandwidth
            np.add.at(columns, (holdings["item"][added], _SECONDS.start + _WEIGHT), seconds)
        return columns

    @staticmethod
    def _joined(of_kinds: Array) -> Array:
        """float64[joined kinds]: of the data axis. Args: of_kinds: float64[KINDS, AXES]."""
        return of_kinds[[KINDS.index(kind) for kind in _JOINED], _DATA]

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
                case = self._patterns.pattern(self._site, row, axes, storage > 0).at(self._site.divided_by)
                phase = phase_of(row, self._program.batch)
                late = row.accumulated if self._alone else 1.0
                yield Member(case.flops, phase, tuple(_placed(case, phase, late, once=row.once)))
            for argument in self._row_sets.arguments[column]:
                gathered = storage > 0 and argument.use == "parameters"
                wires = gathers_of(argument.tensor, axes, self._mesh) if gathered else ()
                collectives = tuple(("before", wire.at(self._site.divided_by)) for wire in wires)
                yield Member(self._additions(argument, axes), "weight", collectives)

    def _additions(self, argument: StepArgument, axes: Mapping[int, str]) -> float:
        """Floating-point operations that add one micro-batch's gradient to the sum so far, on one device."""
        if argument.use != "parameters" or self._micro_batches == 1:
            return 0.0
        shape = argument.tensor.shape
        return math.prod(shape) / self._parts(spec_of(argument.tensor.groups, shape, axes, self._mesh))

    def _parts(self, spec: tuple[str | None, ...]) -> int:
        return math.prod(self._mesh[axis] for axis in spec if axis is not None)

    def _slices(self, axes: Mapping[int, str]) -> Array:
        """float64[blocks], bytes of the slices that a loop over layers takes of its parameters. A step that accumulates
        runs without that loop, and the compiler takes all slices once, before the micro-batches."""
        found = np.zeros(len(self.times))
        for parameter, blocks in self._sliced:
            value = self._program.arguments[parameter]
            tensor = self._program.values[value]
            spec = spec_of(self._program.dim_groups[value], tensor.shape, axes, self._mesh)
            for block, share in blocks:
                found[block] += share * tensor.bytes / self._parts(spec)
        return found

    def _layers(self, stack: Stack, costs: BlockCosts, axes: Mapping[int, str], storage: int) -> Layers:
        """What one layer of a stack is. Args: storage: level (index in STORAGES)."""
        sizes = dict.fromkeys(("parameters", "optimizer", "sent", "gathered", "gradients"), 0.0)
        levels = {use: STORAGES.index(name) for use, name in (("parameters", "state"), ("optimizer", "optimizer"))}
        for (tensor, groups), counts in self._alike[stack].items():
            compute = spec_of(groups, tensor.shape, axes, self._mesh)
            stored = storage_spec(compute, tensor.shape, self._mesh, layers=True)
            layer, whole = tensor.bytes / tensor.shape[0], self._parts(compute)
            for use, count in counts.items():
                sizes[use] += count * layer / (self._parts(stored) if storage >= levels[use] else whole)
            sent = counts["parameters"] * layer / whole
            sizes["sent"] += sent
            sizes["gathered"] += sent if storage >= levels["parameters"] and stored != compute else 0.0
            sizes["gradients"] += sent * max(1.0, SUM_BYTES * tensor.size / tensor.bytes)
        blocks = np.array(stack.blocks)
        own, often = np.unique(blocks, return_counts=True)
        # The update of a block by the bytes of state that it goes over.
        held = costs.held[own][:, [HELD.index("parameters"), HELD.index("optimizer")]].sum(axis=1)
        shares = often * (sizes["parameters"] + sizes["optimizer"]) / held
        update = float(costs.compute[own, PHASES.index("after")] @ shares) / len(blocks)
        return Layers(blocks, update=update, **sizes)

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


def _alike(program: Program, stack: Stack) -> dict[tuple[Value, Groups], Counter[str]]:
    """By tensor and its groups, how many arguments of each use there are."""
    found: dict[tuple[Value, Groups], Counter[str]] = defaultdict(Counter)
    for use, indices in (("parameters", stack.parameters), ("optimizer", stack.optimizer)):
        for value in (program.arguments[k] for k in indices):
            found[program.values[value], program.dim_groups[value]][use] += 1
    return found


def is_joined(collective: Collective) -> bool:
    """Whether the compiler joins it with others of its kind: see `Joined`."""
    return collective.combinable and collective.axis == DATA and collective.kind in _JOINED


def _placed(case: Case, phase: str, accumulated: float, *, once: bool) -> Iterator[tuple[str, Collective]]:
    """A row's collectives, each with the phase that it runs in. `accumulated`: as `Row.accumulated`."""
    for collective in case.collectives:
        parts = [collective]
        if collective.axis == BOTH:
            # A sum over both: over `model` for each micro-batch, over `data` once.
            parts = [replace(collective, axis=MODEL, combinable=False), replace(collective, axis=DATA)]
        for part in parts:
            # Sums over examples are added up on each device, and over devices once.
            late = part.axis == DATA and part.kind != "all_gather" and not once
            yield ("after", replace(part, size=accumulated * part.size)) if late else (phase, part)
