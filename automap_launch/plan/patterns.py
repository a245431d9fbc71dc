"""`PatternBook`: the patterns of a program's rows and arguments as arrays, each worked out once for all meshes.

A pattern (`cases.py`) holds wherever the same dims are divided, so a program has few of them: pricing them on one more
mesh is arithmetic on arrays, however many rows and assignments there are.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.collectives import KINDS
from automap_launch.plan.block_costs import HELD, PHASES
from automap_launch.plan.cases import AXES, Pattern, Wire, gathers_of, pattern_of
from automap_launch.plan.quantity import DIVISORS, Array, divisors, over_spec
from automap_launch.plan.row_sets import RowSets, StepArgument
from automap_launch.plan.rows import PARTS, Row, micro_row
from automap_launch.plan.sharding import DATA, MODEL, spec_of, storage_spec
from automap_launch.program.program import Program

# Assignments of all sets that are kept joined, each for one storage level.
_JOINED = 16
# Sums of low-precision gradients are kept in 32 bits.
SUM_BYTES = 4

# A set's number, the axis of each of its groups that is on one, and the storage level (index in STORAGES).
Assignment = tuple[int, Mapping[int, str], int]

# One run of a row or one argument. `rate`: operations a second. `overhead`: seconds on top of the work. `accumulated`:
# as `Row.accumulated`.
_ITEM = np.dtype(
    [
        ("flops", "f8"),
        ("flops_over", "i8"),
        ("bytes", "f8", (DIVISORS,)),
        ("relaid", "f8", (DIVISORS,)),
        ("rate", "f8"),
        ("overhead", "f8"),
        ("part", "i8"),
        ("phase", "i8"),
        ("once", "?"),
        ("count", "f8"),
        ("accumulated", "f8"),
    ]
)
# One collective of an item. `kind`, `axis`: indices in KINDS and AXES.
_WIRE = np.dtype(
    [
        ("item", "i8"),
        ("kind", "i8"),
        ("axis", "i8"),
        ("size", "f8"),
        ("over", "i8"),
        ("combinable", "?"),
        ("wait", "f8"),
    ]
)
# Bytes that an item holds. `use`: index in HELD.
_HOLDING = np.dtype([("item", "i8"), ("use", "i8"), ("bytes", "f8"), ("over", "i8")])
Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class Patterns:
    """Rows and arguments of some sets, each set under one assignment.

    Attributes:
      lengths: int64[sets], how many items each has.
      items, wires, holdings: records of `_ITEM`, `_WIRE`, `_HOLDING`.
      rows: for each item its row and pattern; None: an argument.
    """

    lengths: npt.NDArray[np.int64]
    items: Records
    wires: Records
    holdings: Records
    rows: tuple[tuple[Row, Pattern] | None, ...]

    @classmethod
    def join(cls, parts: Sequence[Patterns]) -> Patterns:
        starts = np.cumsum([0, *(len(part.items) for part in parts)])
        wires = _together([part.wires for part in parts])
        holdings = _together([part.holdings for part in parts])
        wires["item"] += np.repeat(starts[:-1], [len(part.wires) for part in parts])
        holdings["item"] += np.repeat(starts[:-1], [len(part.holdings) for part in parts])
        return cls(
            np.concatenate([part.lengths for part in parts]),
            _together([part.items for part in parts]),
            wires,
            holdings,
            tuple(row for part in parts for row in part.rows),
        )

    @property
    def sets(self) -> npt.NDArray[np.int64]:
        """int64[items]: the number of each item's set."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclass(frozen=True)
class Site:
    """A mesh, and the number of micro-batches of which each run computes one.

    Attributes:
      divided_by: of `quantity.divisors`.
      batch, storage: for each set what is divided here of the batch, and of any dim by the data axis.
      model: for each set and group in it, whether the axis `model` divides its dims.
    """

    mesh: Mapping[str, int]
    micro_batches: int
    divided_by: Array
    batch: tuple[bytes, ...]
    storage: tuple[bytes, ...]
    model: tuple[dict[int | None, bytes], ...]

    def divided(self, column: int, axes: Mapping[int, str], storage: int) -> bytes:
        """What is divided of a set under an assignment: where it is the same, patterns are."""
        model = b"".join(self.model[column][group] for group, axis in axes.items() if axis == MODEL)
        return self.batch[column] + model + (self.storage[column] if storage > 0 else b"")


class PatternBook:
    """Patterns of all sets of one program, in the cases for which they were asked.

    Args:
      program: whose rows and arguments `sets` has.
    """

    def __init__(self, program: Program, sets: RowSets) -> None:
        self._batch = program.batch
        self.sets = sets
        self._sizes = [_sizes(rows, arguments) for rows, arguments in zip(sets.rows, sets.arguments, strict=True)]
        self._row_patterns: dict[tuple[object, ...], Pattern] = {}
        self._rows_known: dict[tuple[object, ...], Patterns] = {}
        self._known: dict[tuple[object, ...], Patterns] = {}
        self._joined: OrderedDict[tuple[object, ...], Patterns] = OrderedDict()
        self._micro_rows: dict[tuple[int, int], Row] = {}

    def site(self, mesh: Mapping[str, int], micro_batches: int = 1) -> Site:
        """Where patterns are asked for."""
        data, model = mesh[DATA], mesh[MODEL]
        alone = bytes([data == 1, model == 1, micro_batches == 1])

        def of_batch(size: int) -> tuple[bool, ...]:
            smaller = size // micro_batches
            return size % micro_batches == 0, size % data == 0, smaller % data == 0

        return Site(
            mesh,
            micro_batches,
            divisors(mesh, micro_batches),
            tuple(alone + bytes(f for n in sizes.get(self._batch, ()) for f in of_batch(n)) for sizes in self._sizes),
            tuple(
                bytes(n % data == 0 for n in sorted({n for own in sizes.values() for n in own}))
                for sizes in self._sizes
            ),
            tuple({group: bytes(n % model == 0 for n in own) for group, own in sizes.items()} for sizes in self._sizes),
        )

    def of(self, site: Site, assignments: Iterable[Assignment]) -> Patterns:
        """The patterns of some sets there, in order."""
        return Patterns.join([self._of_one(site, *one) for one in assignments])

    def all_of(
        self,
        site: Site,
        sets: tuple[tuple[int, ...], ...],
        storage: int,
        assignments: Callable[[], Iterable[Assignment]],
    ) -> Patterns:
        """The patterns of every assignment of a storage level; kept for the next site.

        Args:
          sets: of each set, the groups that may be sharded, of which there is an assignment for every subset.
        """
        model = tuple(tuple(of_groups.values()) for of_groups in site.model)
        key = (storage, sets, site.batch, model, site.storage if storage > 0 else ())
        if key not in self._joined:
            self._joined[key] = self.of(site, assignments())
            if len(self._joined) > _JOINED:
                self._joined.popitem(last=False)
        self._joined.move_to_end(key)
        return self._joined[key]

    def pattern(self, site: Site, row: Row, axes: Mapping[int, str], scattered: bool) -> Pattern:
        """Of one row. Args: axes, scattered: as in `cases.case_of`."""
        batch, rules = self._batch, self.sets.rules
        return pattern_of(row, axes, site.mesh, rules, scattered, batch=batch, micro_batches=site.micro_batches)

    def seconds(self, site: Site, patterns: Patterns) -> Array:
        """float64[items]: seconds of one run of each on a device, all devices being busy, its collectives apart."""
        items, speed = patterns.items, self.sets.speed
        flops = items["flops"] / site.divided_by[items["flops_over"]]
        moved, relaid = (items[name] @ (1 / site.divided_by) for name in ("bytes", "relaid"))
        if not speed.measured:
            return speed.roofline(flops, moved, relaid, items["rate"], items["overhead"])
        found = np.zeros(len(items))
        for k, own in enumerate(patterns.rows):
            if own is not None:
                row, pattern = own
                product = pattern.product(self._micro_row(row, site.micro_batches), site.mesh)
                found[k] = speed.seconds(row, flops[k], moved[k], product) + speed.copying(relaid[k])
        return found

    def _of_one(self, site: Site, column: int, axes: Mapping[int, str], storage: int) -> Patterns:
        place = (column, tuple(axes.items()), site.divided(column, axes, storage))
        if (*place, storage) not in self._known:
            # Of rows it only matters whether anything is stored sharded, not what.
            rows = (*place, storage > 0)
            if rows not in self._rows_known:
                self._rows_known[rows] = self._rows_of(site, column, axes, storage)
            arguments = _arguments(self.sets.arguments[column], axes, site.mesh, storage)
            whole = Patterns.join([self._rows_known[rows], arguments])
            self._known[*place, storage] = replace(whole, lengths=whole.lengths.sum(keepdims=True))
        return self._known[*place, storage]

    def _rows_of(self, site: Site, column: int, axes: Mapping[int, str], storage: int) -> Patterns:
        rows, found = self.sets.rows[column], []
        divided = [site.divided(column, axes, level) for level in (0, storage)]
        for row in rows:
            # Only where gradients are reduced and in the update it matters whether anything is stored sharded.
            scattered = storage > 0 and (row.gradient or row.part == "update")
            key = (id(row), tuple(axes.items()), scattered, divided[scattered])  # rows live as long as their sets do
            if key not in self._row_patterns:
                self._row_patterns[key] = self.pattern(site, row, axes, scattered)
            found.append((row, self._row_patterns[key]))
        items, speed = np.zeros(len(rows), _ITEM), self.sets.speed
        for item, (row, pattern) in zip(items, found, strict=True):
            item["flops"], item["flops_over"] = pattern.flops
            for quantity in pattern.bytes:
                item["bytes"][quantity.over] += quantity.amount
            for quantity in pattern.relaid:
                item["relaid"][quantity.over] += quantity.amount
            item["rate"], item["overhead"] = speed.rate(row), speed.overhead(row)
            item["part"], item["phase"] = PARTS.index(row.part), PHASES.index(phase_of(row, self._batch))
            item["once"], item["count"], item["accumulated"] = row.once, row.count, row.accumulated
        wires = [_record(k, wire) for k, (_, pattern) in enumerate(found) for wire in pattern.collectives]
        return Patterns(np.array([len(rows)]), items, np.array(wires, _WIRE), np.zeros(0, _HOLDING), tuple(found))

    def _micro_row(self, row: Row, micro_batches: int) -> Row:
        key = (id(row), micro_batches)  # rows live as long as their sets do
        if key not in self._micro_rows:
            self._micro_rows[key] = micro_row(row, self._batch, micro_batches)
        return self._micro_rows[key]


def phase_of(row: Row, batch: int | None) -> str:
    """When a row runs, of PHASES."""
    if row.once:
        return "after" if row.part == "update" else "before"
    sums = [row.operands[position].groups[dim] for position, dim in row.contracted]
    if row.part == "backward" and batch is not None and batch in sums:
        return "weight"
    return row.part


def _arguments(
    arguments: Sequence[StepArgument], axes: Mapping[int, str], mesh: Mapping[str, int], storage: int
) -> Patterns:
    items = np.zeros(len(arguments), _ITEM)
    items["rate"], items["phase"], items["once"] = np.inf, PHASES.index("before"), True
    items["accumulated"] = 1.0
    wires: list[tuple[object, ...]] = []
    holdings: list[tuple[int, int, float, int]] = []
    for k, argument in enumerate(arguments):
        items["count"][k] = argument.count
        tensor = argument.tensor
        size = math.prod(tensor.shape)
        compute = spec_of(tensor.groups, tensor.shape, axes, mesh)
        stored = storage_spec(compute, tensor.shape, mesh) if storage >= argument.stored_from else compute
        holdings.append((k, HELD.index(argument.use), size * tensor.item_bytes, over_spec(stored)))
        if argument.use == "parameters":
            summed = size * max(tensor.item_bytes, SUM_BYTES)
            holdings.append((k, HELD.index("gradients"), summed, over_spec(compute)))
            for wire in gathers_of(tensor, axes, mesh) if storage > 0 else ():
                wires.append(_record(k, wire))
                if storage >= argument.stored_from:
                    # The gathered copy lives beside the stored shard while the forward and backward parts use it. It
                    # arrives with the gathered dim first; a loop wants the dim that it walks first, and gets another.
                    copies = 2 if argument.looped and stored[0] != DATA else 1
                    holdings += [(k, HELD.index("other"), *wire.size)] * copies
    rows = (None,) * len(arguments)
    return Patterns(np.array([len(rows)]), items, np.array(wires, _WIRE), np.array(holdings, _HOLDING), rows)


def _together(parts: Sequence[Records]) -> Records:
    """Records of one kind, one after the other. As plain bytes: numpy would work out a common type of their fields."""
    kind = parts[0].dtype
    joined: Records = np.concatenate([part.view(f"V{kind.itemsize}") for part in parts]).view(kind)
    return joined


def _record(item: int, wire: Wire) -> tuple[object, ...]:
    return item, KINDS.index(wire.kind), AXES.index(wire.axis), *wire.size, wire.combinable, wire.wait


def _sizes(rows: Iterable[Row], arguments: Iterable[StepArgument]) -> dict[int | None, tuple[int, ...]]:
    """By group, None for dims of no group, the sizes of its dims."""
    tensors = [t for row in rows for t in (*row.operands, *row.results)] + [a.tensor for a in arguments]
    found: dict[int | None, set[int]] = {}
    for tensor in tensors:
        for group, size in zip(tensor.groups, tensor.shape, strict=True):
            found.setdefault(group, set()).add(size)
    return {group: tuple(sorted(sizes)) for group, sizes in found.items()}
