"""A made-up search problem with a known optimum, hidden from greedy search.

Groups come in pairs that pay only when both are sharded (the two halves of a Megatron block: one alone makes the other
gather), in lures that lower the step time a little but rule out a pair's gain, and in burdens that never pay. So
sharding nothing, sharding everything, and sharding whatever helps at once are all wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap_launch.cluster.cluster import Cluster, Device, Link
from automap_launch.plan.decision import STORAGES, Decision
from automap_launch.plan.group_bounds import GroupBounds
from automap_launch.plan.plan import Memory
from automap_launch.program.program import Group, GroupKind, Op, Program, Value
from automap_launch.train_step import Argument, StepIdentity, TrainStep

BATCH = 64
WIDTH = 64


def cluster(devices: int = 8, memory_bytes: int = 1000) -> Cluster:
    device = Device("made-up", {"float32": 1e12}, memory_bytes, 1e11)
    return Cluster("made-up", "cpu", 1, devices, device, (Link("host", 1e-6, 1e-10),))


def program(kinds: Sequence[GroupKind], meetings: Sequence[tuple[int, int]] = (), sizes: Sequence[int] = ()) -> Program:
    """A program with the batch group 0 and one group a kind after it; `meetings`: groups that share an operation."""
    widths = list(sizes) or [WIDTH] * len(kinds)
    values = [Value((BATCH,), "float32"), *(Value((w,), "float32") for w in widths)]
    groups = [Group(0, "batch", (BATCH,), (), ((0, 0),), 4 * BATCH)]
    for i, (kind, width) in enumerate(zip(kinds, widths, strict=True), 1):
        groups.append(Group(i, kind, (width,), (f"params/{i}",), ((i, 0),), 4 * width))
    ops = tuple(Op("dot_general", (a, b), (b,), flops=1000) for a, b in meetings)
    arguments = tuple(range(len(values)))
    roles = [Argument(f"argument/{k}", values[k].shape, "float32", "state" if k else "batch") for k in arguments]
    step = TrainStep(StepIdentity("step", None), "jax", tuple(roles), (), {"cpu": b""}, "0" * 16)
    dims = tuple((i,) for i in arguments)
    return Program(step, tuple(values), ops, arguments, (), arguments[1:], tuple(groups), 0, dims)


@dataclass(frozen=True)
class Cost:
    compute: float
    communication: float
    memory: Memory
    fits: bool

    @property
    def step_seconds(self) -> float:
        return self.compute + self.communication


@dataclass
class Problem:
    """A cost model made of tables. All numbers are drawn from `seed`.

    Attributes:
      pairs, lures, burdens: group ids. A lure is (group, the pair whose gain it rules out).
      parameter_bytes: of the whole model; each group holds an equal part.
    """

    seed: int = 0
    pair_count: int = 4
    lure_count: int = 2
    burden_count: int = 2
    devices: int = 8
    memory_bytes: int = 10_000
    parameter_bytes: int = 400
    calls: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        count = 2 * self.pair_count + self.lure_count + self.burden_count
        ids = (rng.permutation(count) + 1).tolist()
        self.pairs = [tuple(ids[2 * k : 2 * k + 2]) for k in range(self.pair_count)]
        lures = ids[2 * self.pair_count : 2 * self.pair_count + self.lure_count]
        self.lures = [(g, k % self.pair_count) for k, g in enumerate(lures)]
        self.burdens = ids[2 * self.pair_count + self.lure_count :]
        self.count = count
        self.gain = rng.uniform(0.06, 0.14, self.pair_count)
        self.alone = rng.uniform(0.05, 0.15, self.pair_count)
        self.lure_gain = rng.uniform(0.02, 0.04, len(self.lures))
        self.burden_cost = rng.uniform(0.05, 0.2, len(self.burdens))
        kinds: list[GroupKind] = ["activation" if g in self.burdens else "parameter" for g in range(1, count + 1)]
        meetings = [*self.pairs, *((g, member) for g, pair in self.lures for member in self.pairs[pair])]
        self.program = program(kinds, meetings)
        self.cluster = cluster(self.devices, self.memory_bytes)
        self.memory_limit = 0.9 * self.memory_bytes

    def estimate(self, decision: Decision) -> Cost:
        model, sharded = decision.model, decision.sharded
        reach = 0.0 if model == 1 else 1 - abs(np.log2(model) - np.log2(self.devices) / 2) / 4
        gained = communication = 0.0
        spoilt = {pair for g, pair in self.lures if g in sharded}
        for k, (a, b) in enumerate(self.pairs):
            if a in sharded and b in sharded:
                gained += 0.01 if k in spoilt else self.gain[k]
            elif a in sharded or b in sharded:
                communication += self.alone[k]
        gained += sum(self.lure_gain[k] for k, (g, _) in enumerate(self.lures) if g in sharded)
        communication += sum(self.burden_cost[k] for k, g in enumerate(self.burdens) if g in sharded)
        compute = 1.0 - reach * gained
        communication = reach * communication + 0.1 * (decision.data > 1) + 0.02 * STORAGES.index(decision.storage)
        share = self.parameter_bytes / self.count
        parameters = sum(share / (model if g in sharded else 1) for g in range(1, self.count + 1))
        over_data = [1, 1, decision.data][STORAGES.index(decision.storage)]
        optimizer_over = 1 if decision.storage == "none" else decision.data
        memory = Memory(
            int(parameters / over_data), int(2 * parameters / optimizer_over), int(parameters), 200 // decision.data
        )
        fits = memory.total <= self.memory_limit
        return Cost(float(compute), float(communication), memory, fits)

    def estimate_many(self, decisions: Sequence[Decision]) -> list[Cost]:
        self.calls += 1
        return [self.estimate(d) for d in decisions]

    def group_bounds(self, decision: Decision) -> GroupBounds:
        """What each pair and its lures, and each burden, add at least; the rest is in the first set."""
        plain = self.estimate(Decision(decision.data, decision.model, storage=decision.storage))
        members = [(*pair, *(g for g, spoils in self.lures if spoils == k)) for k, pair in enumerate(self.pairs)]
        sets = [(), *members, *((g,) for g in self.burdens)]
        tables = [np.array([[plain.step_seconds], [plain.step_seconds], [0.0]])]
        for groups in sets[1:]:
            subsets = [
                frozenset(g for bit, g in enumerate(groups) if mask >> bit & 1) for mask in range(2 ** len(groups))
            ]
            costs = [self.estimate(Decision(decision.data, decision.model, s, decision.storage)) for s in subsets]
            more = np.array([c.step_seconds - plain.step_seconds for c in costs])
            tables.append(np.array([more, more, 0 * more]))
        return GroupBounds(tuple(sets), tuple(tables))

    def baselines(self) -> dict[str, Decision | None]:
        return {
            "single": Decision(1, 1),
            "data_parallel": Decision(self.devices, 1),
            "zero_data_parallel": Decision(self.devices, 1, storage="state"),
            "megatron": Decision(self.devices // 2, 2, frozenset(self.pairs[0])) if self.devices > 1 else None,
        }

    def optimum(self) -> float:
        """By construction of the tables: every pair and lure set, each mesh and storage, burdens left whole."""
        best = np.inf
        for model in [m for m in range(1, self.devices + 1) if self.devices % m == 0]:
            for flags in itertools.product([False, True], repeat=self.pair_count + len(self.lures)):
                sharded = {g for on, pair in zip(flags, self.pairs, strict=False) if on for g in pair}
                sharded |= {g for on, (g, _) in zip(flags[self.pair_count :], self.lures, strict=True) if on}
                if model == 1 and sharded:
                    continue
                for storage in STORAGES if model < self.devices else STORAGES[:1]:
                    cost = self.estimate(Decision(self.devices // model, model, frozenset(sharded), storage))
                    best = min(best, cost.step_seconds if cost.fits else np.inf)
        return float(best)
