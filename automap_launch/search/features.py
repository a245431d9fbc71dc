"""Features of an action that mean the same in every model and cluster: ratios, shares and flags, never sizes.

So one set of weights serves any number of groups and devices. Every action is looked at through two whole plans: the
one in which all that is left stays as it is (`plain`) and the one in which all that is left is sharded (`full`). They
are the two ends of the trade between communication and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.program.program import Program
from automap_launch.search.evaluator import log_cost
from automap_launch.search.space import Choice, Estimate, PlanSpace

FEATURES = (
    "reward",  # the immediate reward: drop of the potential; the network learns what comes after it
    "plain_vs_now",
    "full_vs_now",
    "plain_vs_start",
    "full_vs_plain",
    "plain_communication",
    "full_communication",
    "plain_compute_change",
    "plain_communication_change",
    "plain_memory",
    "full_memory",
    "plain_fits",
    "full_fits",
    "is_mesh",
    "is_storage",
    "is_group",
    "data_axis",
    "model_axis",
    "devices",
    "batch_rows",
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
)

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LookAhead:
    """The two whole plans of a partial one. `potential`: the lower of their costs (`log_cost`)."""

    plain: Estimate
    full: Estimate
    potential: float


def look_ahead(plain: Estimate, full: Estimate, memory_limit: float) -> LookAhead:
    return LookAhead(plain, full, min(log_cost(plain, memory_limit), log_cost(full, memory_limit)))


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
      start: look-ahead of the undecided plan, the reference of `plain_vs_start`.
      memory_limit: bytes that a plan may use on a device.
    """

    def __init__(self, space: PlanSpace, start: LookAhead, memory_limit: float) -> None:
        self._space = space
        self._facts = GroupFacts(space)
        self._start = start
        self._memory_limit = memory_limit

    def __call__(self, choices: Sequence[Choice], now: LookAhead, after: Sequence[LookAhead]) -> Array:
        """float32[len(choices), len(FEATURES)].

        Args:
          now: look-ahead of the state. after: of the result of each choice.
        """
        return np.array([self._row(c, now, a) for c, a in zip(choices, after, strict=True)], np.float32)

    def _row(self, choice: Choice, now: LookAhead, after: LookAhead) -> list[float]:
        space, facts, partial = self._space, self._facts, choice.result
        plain, full = after.plain, after.full
        data, model = partial.mesh or (1, 1)
        is_group = choice.kind == "group"
        index = facts.place[choice.group.id] if choice.group is not None else 0
        sharded = np.zeros(len(space.groups), bool)
        sharded[: len(partial.groups)] = partial.groups
        undecided = np.arange(len(space.groups)) >= len(partial.groups)
        batch = space.program.batch
        rows = space.program.groups[batch].divisor / data if batch is not None else 1.0
        return [
            now.potential - after.potential,
            _log_ratio(plain.step_seconds, now.plain.step_seconds),
            _log_ratio(full.step_seconds, now.full.step_seconds),
            _log_ratio(plain.step_seconds, self._start.plain.step_seconds),
            _log_ratio(full.step_seconds, plain.step_seconds),
            _share(plain.communication, plain.step_seconds),
            _share(full.communication, full.step_seconds),
            _log_ratio(plain.compute, now.plain.compute),
            _log_ratio(plain.communication, now.plain.communication),
            _log_ratio(plain.memory.total, self._memory_limit),
            _log_ratio(full.memory.total, self._memory_limit),
            float(plain.fits),
            float(full.fits),
            float(choice.kind == "mesh"),
            float(choice.kind == "storage"),
            float(is_group),
            _log2_share(data, space.devices),
            _log2_share(model, space.devices),
            math.log2(space.devices) / 8,
            math.log2(max(rows, 1)) / 8,
            float(partial.storage == "optimizer"),
            float(partial.storage == "state"),
            float(is_group and partial.groups[index]),
            float(is_group and choice.group is not None and choice.group.kind == "parameter"),
            float(facts.bytes[index]) if is_group else 0.0,
            float(facts.flops[index]) if is_group else 0.0,
            math.log2(choice.group.tied) / 8 if choice.group is not None else 0.0,
            float(facts.near[index] @ sharded) if is_group else 0.0,
            float(facts.near[index] @ ~(sharded | undecided)) if is_group else 0.0,
            float(facts.bytes @ sharded),
            float(facts.bytes @ undecided),
            len(partial.groups) / max(len(space.groups), 1),
        ]


def _shares(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = values.sum()
    return values / total if total > 0 else values


def _log_ratio(new: float, old: float) -> float:
    """Natural log of new / old, kept within ±5; two zeros are alike."""
    tiny = 1e-12
    return max(-5.0, min(5.0, math.log((new + tiny) / (old + tiny))))


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
