"""`RowSets`: the rows and arguments of a program by the set of groups that they touch."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from automap_launch.cluster.cluster import Cluster
from automap_launch.plan.decision import STORAGES
from automap_launch.plan.platforms import PlatformRules, rules_of
from automap_launch.plan.rows import Row, Tensor, rows_of
from automap_launch.plan.speed import Speed
from automap_launch.plan.traffic import Traffic
from automap_launch.program.batch_analysis import Shares
from automap_launch.program.program import Program

# Rows that touch more groups than this are priced one tensor at a time.
_MAX_GROUPS = 14
_NEVER = len(STORAGES)


@dataclass(frozen=True)
class StepArgument:
    """Arguments of one shape and use, which is one of `block_costs.HELD`.

    `count`: how many they are. `blocks`: of that, how much is in which block.

    `stored_from`: the storage level (index in STORAGES) from which they are stored sharded over the data axis.

    `looped`: a loop reads them, a slice a round.
    """

    tensor: Tensor
    use: str
    stored_from: int
    count: int = 1
    blocks: Shares = ((0, 1.0),)
    looped: bool = False


class RowSets:
    """The rows and arguments of a program by the set of groups that they touch.

    Attributes:
      groups: the sets, in the order of their index. rows, arguments: of each set; no set is without any.
    """

    def __init__(self, program: Program, traffic: Traffic, cluster: Cluster) -> None:
        self.speed = Speed(cluster)
        self.rules: PlatformRules = rules_of(cluster.platform)
        rows: dict[frozenset[int], list[Row]] = {}
        for row in rows_of(program, traffic, self.rules):
            for part in [row] if len(row.groups) <= _MAX_GROUPS else _apart(row):
                rows.setdefault(part.groups, []).append(part)
        arguments: dict[frozenset[int], list[StepArgument]] = {}
        for argument in _arguments_of(program):
            groups = frozenset(g for g in argument.tensor.groups if g is not None)
            arguments.setdefault(groups, []).append(argument)
        self.groups = tuple(dict.fromkeys([*rows, *arguments]))
        self.rows = [rows.get(groups, []) for groups in self.groups]
        self.arguments = [arguments.get(groups, []) for groups in self.groups]


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
    looped = {value for op in program.ops if op.times > 1 for value in op.operands}
    counts: Counter[StepArgument] = Counter()
    blocks: dict[StepArgument, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for i, (value, argument) in enumerate(zip(program.arguments, program.step.arguments, strict=True)):
        tensor = Tensor(
            program.values[value].shape, program.values[value].dtype, program.dim_groups[value], counted=False
        )
        if i in parameters:
            use = StepArgument(tensor, "parameters", STORAGES.index("state"), looped=value in looped)
        elif argument.role == "state":
            use = StepArgument(tensor, "optimizer", STORAGES.index("optimizer"))
        else:
            use = StepArgument(tensor, "other", _NEVER)
        counts[use] += 1
        for block, share in program.homes.arguments[i] if program.homes.arguments else ((0, 1.0),):
            blocks[use][block] += share
    return [replace(use, count=count, blocks=tuple(blocks[use].items())) for use, count in counts.items()]
