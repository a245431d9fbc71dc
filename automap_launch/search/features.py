"""Features of an action that mean the same in every model and cluster: ratios, shares and flags, never sizes.

So one set of weights serves any number of blocks, groups and devices. Every action is looked at through whole plans, in
which all that is left is decided in one of three ways (`space.STYLES`): the least communication, as by hand, the least
memory. For a cut there is a bound besides: what the largest stage must at least have once the rest is cut evenly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.plan.decision import Decision
from automap_launch.program.program import Program
from automap_launch.search.evaluator import log_cost
from automap_launch.search.space import KINDS, STYLES, Choice, Estimate, Partial, PlanSpace, Style

Array = npt.NDArray[np.float32]

_OF_A_STYLE = ("vs_now", "vs_best", "communication", "memory", "fits")
FEATURES = (
    "reward",  # the immediate reward: drop of the potential; the network learns what comes after it
    "best_vs_start",
    *(f"{style}_{what}" for style in STYLES for what in _OF_A_STYLE),
    *(f"is_{kind}" for kind in KINDS),
    "devices",
    "stages",
    "micro_batches",
    "rows",
    "bubble",
    "gpipe",
    "zero_bubble",
    "data_axis",
    "model_axis",
    "model_leaves_host",
    "stage_leaves_host",
    "stores_optimizer",
    "stores_state",
    "shards",
    "holds_parameters",
    "group_bytes",
    "group_flops",
    "group_tied",
    "near_sharded",
    "near_whole",
    "bytes_sharded",
    "bytes_undecided",
    "progress",
    "stage_work",
    "rest_work",
    "largest_work",
    "stage_memory",
    "rest_memory",
    "largest_memory",
    "boundary",
    "single_block",
)


@dataclass(frozen=True)
class LookAhead:
    """The whole plans of a partial one: of each style the best, and the lowest cost of all (`log_cost`)."""

    styles: Mapping[Style, Estimate]
    potential: float
    decision: Decision


def look_ahead(seen: Sequence[tuple[Style, Decision, Estimate]], memory_limit: float) -> LookAhead:
    """Args: seen: whole plans with their style; of every style at least one."""
    costs = [log_cost(estimate, memory_limit) for _, _, estimate in seen]
    best: dict[Style, int] = {}
    for i, (style, _, _) in enumerate(seen):
        if style not in best or costs[i] < costs[best[style]]:
            best[style] = i
    lowest = min(best.values(), key=lambda i: costs[i])
    return LookAhead({style: seen[i][2] for style, i in best.items()}, costs[lowest], seen[lowest][1])


class GroupFacts:
    """What of each decided group does not depend on the plan, as shares of the whole.

    Attributes:
      place: a group's position in the order of decisions, by its id.
      bytes, flops: of the tensors and of the operations that a group is part of; each sums to 1 over the groups.
      near: [group, group] how much of a group's traffic it shares with another; rows sum to 1, or 0 for a loner.
    """

    def __init__(self, space: PlanSpace) -> None:
        self.place = {group.id: i for i, group in enumerate(space.groups)}
        self.bytes = _shares(np.array([float(g.bytes) for g in space.groups]))
        flops, near = _meetings(space.program, self.place)
        self.flops = _shares(flops)
        totals = near.sum(axis=1, keepdims=True)
        self.near = np.divide(near, totals, out=np.zeros_like(near), where=totals > 0)


class ActionFeatures:
    """Computes the feature vectors of one space's actions.

    Args:
      start: look-ahead of the undecided plan, the reference of `best_vs_start`.
      memory_limit: bytes that a plan may use on a device. devices_per_host: of the cluster.
    """

    def __init__(self, space: PlanSpace, start: LookAhead, memory_limit: float, devices_per_host: int) -> None:
        self._space = space
        self._facts = GroupFacts(space)
        self._start = start
        self._memory_limit = memory_limit
        self._per_host = devices_per_host

    def __call__(self, choices: Sequence[Choice], now: LookAhead, after: Sequence[LookAhead]) -> Array:
        """float32[len(choices), len(FEATURES)].

        Args:
          now: look-ahead of the state. after: of the result of each choice.
        """
        return np.array([self._row(c, now, a) for c, a in zip(choices, after, strict=True)], np.float32)

    def _row(self, choice: Choice, now: LookAhead, after: LookAhead) -> list[float]:
        return [
            now.potential - after.potential,
            _clip(after.potential - self._start.potential),
            *self._styles(now, after),
            *(float(choice.kind == kind) for kind in KINDS),
            *self._shape(choice.result),
            *self._group(choice),
            *self._cut(choice),
        ]

    def _styles(self, now: LookAhead, after: LookAhead) -> list[float]:
        row = []
        for style in STYLES:
            estimate = after.styles[style]
            row += [
                _log_ratio(estimate.step_seconds, now.styles[style].step_seconds),
                _clip(log_cost(estimate, self._memory_limit) - after.potential),
                _share(estimate.communication, estimate.step_seconds),
                _log_ratio(estimate.memory.total, self._memory_limit),
                float(estimate.fits),
            ]
        return row

    def _shape(self, partial: Partial) -> list[float]:
        space = self._space
        stages, micro_batches = partial.stages or 1, partial.micro_batches or 1
        data, model = partial.mesh or (1, 1)
        batch = space.program.batch
        rows = space.program.groups[batch].divisor / (data * micro_batches) if batch is not None else 1.0
        return [
            math.log2(space.devices) / 8,
            _log2_share(stages, space.devices),
            math.log2(micro_batches) / 8,
            math.log2(max(rows, 1)) / 8,
            (stages - 1) / (stages - 1 + micro_batches),
            float(partial.schedule == "gpipe"),
            float(partial.schedule == "zero_bubble"),
            _log2_share(data, space.devices),
            _log2_share(model, space.devices),
            float(model > self._per_host),
            float(data * model > self._per_host),
            float(partial.storage == "optimizer"),
            float(partial.storage == "state"),
        ]

    def _group(self, choice: Choice) -> list[float]:
        facts, partial = self._facts, choice.result
        count = len(self._space.groups)
        sharded = np.zeros(count, bool)
        sharded[: len(partial.groups)] = partial.groups
        undecided = np.arange(count) >= len(partial.groups)
        done = len(partial.groups) / max(count, 1)
        everywhere = [float(facts.bytes @ sharded), float(facts.bytes @ undecided), done]
        if choice.group is None:
            return [0.0] * 7 + everywhere
        index = facts.place[choice.group.id]
        return [
            float(sharded[index]),
            float(choice.group.kind == "parameter"),
            float(facts.bytes[index]),
            float(facts.flops[index]),
            math.log2(choice.group.tied) / 8,
            float(facts.near[index] @ sharded),
            float(facts.near[index] @ ~(sharded | undecided)),
            *everywhere,
        ]

    def _cut(self, choice: Choice) -> list[float]:
        cuts, stages, partition = choice.result.cuts, choice.result.stages or 1, self._space.partition
        if choice.kind != "cut":
            return [0.0] * 8
        bounds = np.array((0, *cuts, partition.blocks))
        left = stages - len(cuts)
        row = []
        for running in (partition.work, partition.memory):
            shares = np.diff(running[bounds]) * stages
            rest = shares[-1] / left
            largest = max(float(shares[:-1].max()), float(rest))
            row += [_log_ratio(float(shares[-2]), 1.0), _log_ratio(float(rest), 1.0), _log_ratio(largest, 1.0)]
        return [*row, float(partition.boundary[cuts[-1] - 1]), float(bounds[-2] - bounds[-3] == 1)]


def _shares(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = values.sum()
    return values / total if total > 0 else values


def _clip(value: float) -> float:
    return max(-5.0, min(5.0, value))


def _log_ratio(new: float, old: float) -> float:
    """Natural log of new / old, kept within ±5; two zeros are alike."""
    tiny = 1e-12
    return _clip(math.log((new + tiny) / (old + tiny)))


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0


def _log2_share(size: int, devices: int) -> float:
    return math.log2(size) / math.log2(devices) if devices > 1 else 0.0


def _meetings(program: Program, place: dict[int, int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Flops of the operations that each group is part of, and bytes that flow where two groups meet in one."""
    flops = np.zeros(len(place))
    near = np.zeros((len(place), len(place)))
    for op in program.ops:
        ids = {group for value in (*op.operands, *op.results) for group in program.dim_groups[value]}
        touched = [place[g] for g in ids if g is not None and g in place]
        size = op.times * sum(program.values[value].bytes for value in op.results)
        for i in touched:
            flops[i] += op.flops * op.times
            for j in touched:
                near[i, j] += size if i != j else 0
    return flops, near
