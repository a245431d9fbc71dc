"""Prices: what the rows and arguments that touch one set of groups add to a step, as a vector of columns."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import Kind
from automap_launch.plan.cases import AXES, Case, Collective, case_of, gather_case
from automap_launch.plan.decision import STORAGES
from automap_launch.plan.platforms import PlatformRules, rules_of
from automap_launch.plan.rows import Row, Tensor, rows_of
from automap_launch.plan.sharding import DATA, MODEL, spec_of, storage_spec
from automap_launch.plan.speed import Speed
from automap_launch.plan.traffic import Traffic
from automap_launch.program.batch_analysis import Shares
from automap_launch.program.program import Part, Program

Array = npt.NDArray[np.float64]

PARTS: tuple[Part, ...] = ("forward", "backward", "update")
# A lane: collectives that are priced alike. (kind, axis, whether the compiler joins them)
_KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LANES = tuple((kind, axis, combinable) for kind in _KINDS for axis in AXES for combinable in (False, True))
_LANE = {lane: i for i, lane in enumerate(LANES)}

# Columns: seconds of each part, bytes held by use, floating-point operations, then each lane's bytes and how many
# collectives it has.
SECONDS = slice(0, len(PARTS))
PARAMETERS, OPTIMIZER, OTHER, FLOPS = (len(PARTS) + i for i in range(4))
SIZES = slice(FLOPS + 1, FLOPS + 1 + len(LANES))
COUNTS = slice(SIZES.stop, SIZES.stop + len(LANES))
WIDTH = COUNTS.stop

# Rows that touch more groups than this are priced one tensor at a time.
_MAX_GROUPS = 14
_NEVER = len(STORAGES)


@dataclass(frozen=True)
class StepArgument:
    """Arguments of one shape and use. `count`: how many they are. `blocks`: of that, how much is in which block.

    `stored_from`: the storage level (index in STORAGES) from which they are stored sharded over the data axis.
    """

    tensor: Tensor
    column: int
    stored_from: int
    count: int = 1
    blocks: Shares = ((0, 1.0),)


class RowSets:
    """The rows and arguments of a program by the set of groups that they touch.

    Attributes:
      groups: the sets, in the order of their index. rows, arguments: of each set.
    """

    def __init__(self, program: Program, traffic: Traffic, cluster: Cluster) -> None:
        self._cluster = cluster
        self._speed = Speed(cluster)
        self.rules: PlatformRules = rules_of(cluster.platform)
        rows: dict[frozenset[int], list[Row]] = {}
        for row in rows_of(program, traffic):
            for part in [row] if len(row.groups) <= _MAX_GROUPS else _apart(row):
                rows.setdefault(part.groups, []).append(part)
        arguments: dict[frozenset[int], list[StepArgument]] = {}
        for argument in _arguments_of(program):
            groups = frozenset(g for g in argument.tensor.groups if g is not None)
            arguments.setdefault(groups, []).append(argument)
        self.groups = tuple(dict.fromkeys([*rows, *arguments]))
        self.rows = [rows.get(groups, []) for groups in self.groups]
        self.arguments = [arguments.get(groups, []) for groups in self.groups]

    def price(self, index: int, axes: Mapping[int, str], mesh: Mapping[str, int], storage: int) -> Array:
        """float64[WIDTH]: the columns of one set.

        Args:
          axes: the axis of each of its groups that is on one.
          mesh: size by axis.
          storage: index in STORAGES.
        """
        columns = np.zeros(WIDTH)
        speed = min(self._cluster.curves.alone_speedup, self._cluster.devices / (mesh[DATA] * mesh[MODEL]))
        for row in self.rows[index]:
            case = case_of(row, axes, mesh, self.rules, scattered=storage > 0)
            columns[PARTS.index(row.part)] += row.count * self.seconds(row, case) / speed
            columns[FLOPS] += row.count * case.flops
            _add(columns, case.collectives, row.count)
        for argument in self.arguments[index]:
            self._price_argument(columns, argument, axes, mesh, storage)
        return columns

    def seconds(self, row: Row, case: Case) -> float:
        """Seconds of one run of a row, its collectives apart."""
        return self._speed.seconds(row, case.flops, case.bytes, case.product)

    def _price_argument(
        self, columns: Array, argument: StepArgument, axes: Mapping[int, str], mesh: Mapping[str, int], storage: int
    ) -> None:
        tensor = argument.tensor
        spec = spec_of(tensor.groups, tensor.shape, axes, mesh)
        if storage >= argument.stored_from:
            spec = storage_spec(spec, tensor.shape, mesh)
        parts = math.prod(mesh[axis] for axis in spec if axis is not None)
        columns[argument.column] += argument.count * math.prod(tensor.shape) * tensor.item_bytes / parts
        if storage > 0 and argument.column == PARAMETERS:
            gathers = gather_case(tensor, axes, mesh, self.rules).collectives
            _add(columns, gathers, argument.count)
            if storage >= argument.stored_from:
                # The gathered copy lives beside the stored shard while the forward and backward parts use it.
                columns[OTHER] += argument.count * sum(c.size for c in gathers)


def _add(columns: Array, found: Iterable[Collective], count: int) -> None:
    for collective in found:
        lane = _LANE[collective.kind, collective.axis, collective.combinable]
        columns[SIZES.start + lane] += count * collective.size
        columns[COUNTS.start + lane] += count * (1.0 if collective.combinable else collective.wait)


def _apart(row: Row) -> list[Row]:
    """A row as rows of one tensor each: its memory traffic, and its flops where the first result is made."""
    operands = [replace(row, name="part", flops=0, operands=(t,), results=()) for t in row.operands if t.counted]
    results = [
        replace(row, name="part", flops=row.flops if i == 0 else 0, operands=(), results=(t,))
        for i, t in enumerate(row.results)
    ]
    return [replace(part, contracted=(), whole=()) for part in (*operands, *results)]


def _arguments_of(program: Program) -> list[StepArgument]:
    parameters = set(program.parameters)
    counts: Counter[StepArgument] = Counter()
    blocks: dict[StepArgument, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for i, (value, argument) in enumerate(zip(program.arguments, program.step.arguments, strict=True)):
        tensor = Tensor(
            program.values[value].shape, program.values[value].dtype, program.dim_groups[value], counted=False
        )
        if i in parameters:
            use = StepArgument(tensor, PARAMETERS, STORAGES.index("state"))
        elif argument.role == "state":
            use = StepArgument(tensor, OPTIMIZER, STORAGES.index("optimizer"))
        else:
            use = StepArgument(tensor, OTHER, _NEVER)
        counts[use] += 1
        for block, share in program.homes.arguments[i] if program.homes.arguments else ((0, 1.0),):
            blocks[use][block] += share
    return [replace(use, count=count, blocks=tuple(blocks[use].items())) for use, count in counts.items()]
