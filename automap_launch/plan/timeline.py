"""How long a pipeline takes: each stage's tasks in the order of its schedule, and the messages between stages.

The recurrence: a task ends its own seconds after the later of two moments, the end of the task before it on the same
stage and the arrival of what it waits for. A message waits for the one before it in the same queue (a pair of
neighbouring stages and a direction) and costs the stages themselves no time. The order of tasks is that of the
pipeline runner, and so is this: the last stage goes from forward to backward at once, as one task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from automap_launch.plan.decision import Schedule

Array = npt.NDArray[np.float64]
TaskKind = Literal["forward", "backward", "weight"]
# For each stage its tasks in order, each with its micro-batch.
Order = tuple[tuple[tuple[TaskKind, int], ...], ...]

# From so many plans on, arrays over plans are faster than one plan after the other.
_MANY = 6


@dataclass(frozen=True)
class StageSeconds:
    """What the stages of pipelines take; float64[plans, stages] each, in seconds.

    Attributes:
      forward, backward, weight: of one micro-batch. `weight`: the part of the backward pass that no other stage waits
        for; it follows `backward` at once unless the schedule sets it apart.
      before, after: once a step, before a stage's first task and after its last.
      transfer: float64[plans, stages - 1], of one micro-batch's message between two neighbours, either way.
    """

    forward: Array
    backward: Array
    weight: Array
    before: Array
    after: Array
    transfer: Array


def step_seconds(schedule: Schedule, micro_batches: int, stages: StageSeconds) -> Array:
    """float64[plans]: from the start of a step to the end of its last stage."""
    count = stages.forward.shape[1]
    forward, backward, weight = stages.forward, stages.backward, stages.weight
    if count == 1:
        whole: Array = stages.before + micro_batches * (forward + backward + weight) + stages.after
        return whole[:, 0]
    if schedule != "zero_bubble":
        backward, weight = backward + weight, np.zeros_like(weight)
    forward, backward = forward.copy(), backward.copy()
    backward[:, -1] += forward[:, -1]
    forward[:, -1] = 0.0
    durations = np.concatenate([forward, backward, weight, stages.transfer], axis=1)
    tasks = _tasks(schedule, count, micro_batches)
    ends = _ends_together if len(durations) >= _MANY else _ends_one_by_one
    total: Array = (ends(tasks, stages.before, durations) + stages.after).max(axis=1)
    return total


@lru_cache(maxsize=4096)
def in_flight(schedule: Schedule, stages: int, micro_batches: int) -> tuple[int, ...]:
    """For each stage, the most micro-batches whose activations it holds at a time: from the forward task to the
    backward one, or to the weight task where that is set apart."""
    if schedule == "none":
        return (1,) * stages
    last = "weight" if schedule == "zero_bubble" else "backward"
    peaks = []
    for tasks in order_of(schedule, stages, micro_batches):
        held = peak = 0
        for kind, _ in tasks:
            held += (kind == "forward") - (kind == last)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


@lru_cache(maxsize=512)
def order_of(schedule: Schedule, stages: int, micro_batches: int) -> Order:
    """The tasks of each stage.

    - `gpipe`: all forward, then all backward.
    - `1f1b`: stage s runs at most `stages - s` micro-batches ahead, then one forward, one backward (PipeDream-flush,
      Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021).
    - `zero_bubble`: backward in two halves, the second where else a stage would idle (ZB-H1: Qi et al., "Zero bubble
      pipeline parallelism", 2023).

    Raises:
      ValueError: `none`, which orders nothing.
    """
    if schedule == "none":
        raise ValueError("the schedule `none` is that of a single stage: it orders no tasks")
    if schedule == "zero_bubble":
        return _zero_bubble(stages, micro_batches)
    order: list[tuple[tuple[TaskKind, int], ...]] = []
    for stage in range(stages):
        ahead = micro_batches if schedule == "gpipe" else min(stages - stage - 1, micro_batches)
        tasks: list[tuple[TaskKind, int]] = [("forward", k) for k in range(ahead)]
        for k in range(micro_batches - ahead):
            tasks += [("forward", ahead + k), ("backward", k)]
        tasks += [("backward", k) for k in range(micro_batches - ahead, micro_batches)]
        order.append(tuple(tasks))
    return tuple(order)


def _zero_bubble(stages: int, micro_batches: int) -> Order:
    """As if every task took one unit of time: a forward first, as far ahead as in `1f1b` and while fewer than `stages`
    micro-batches are held; then a backward; then a weight."""
    order: list[list[tuple[TaskKind, int]]] = [[] for _ in range(stages)]
    forward, backward, weight = [0] * stages, [0] * stages, [0] * stages
    while min(weight) < micro_batches:
        started: list[tuple[int, TaskKind]] = []
        for s in range(stages):
            arrived = micro_batches if s == 0 else forward[s - 1]
            returned = forward[s] if s == stages - 1 else min(backward[s + 1], forward[s])
            room = forward[s] - backward[s] < stages - s and forward[s] - weight[s] < stages
            if forward[s] < arrived and room:
                started.append((s, "forward"))
            elif backward[s] < returned:
                started.append((s, "backward"))
            elif weight[s] < backward[s]:
                started.append((s, "weight"))
        for s, kind in started:
            done = {"forward": forward, "backward": backward, "weight": weight}[kind]
            order[s].append((kind, done[s]))
            done[s] += 1
    return tuple(map(tuple, order))


@dataclass(frozen=True)
class _Tasks:
    """All tasks and messages of a schedule, in an order in which each comes after what it waits for.

    Moments are numbered: first each stage's start, then the end of each task. Task i ends at moment `stages + i`, its
    duration (a column: forward, backward, weight of each stage, then transfer) after moments `after[i]` and
    `waits[i]`. `last`: for each stage, the moment when its last task ends.
    """

    after: tuple[int, ...]
    waits: tuple[int, ...]
    duration: tuple[int, ...]
    last: tuple[int, ...]


@lru_cache(maxsize=256)
def _tasks(schedule: Schedule, stages: int, micro_batches: int) -> _Tasks:
    order = order_of(schedule, stages, micro_batches)
    clock = list(range(stages))  # moments
    arrived: dict[tuple[TaskKind, int, int], int] = {}  # kind of task, stage, micro-batch: when it may start
    queues: dict[tuple[TaskKind, int], int] = {}
    after: list[int] = []
    waits: list[int] = []
    duration: list[int] = []

    def add(first: int, second: int, column: int) -> int:
        after.append(first)
        waits.append(second)
        duration.append(column)
        return stages + len(after) - 1

    place = [0] * stages
    while any(place[s] < len(tasks) for s, tasks in enumerate(order)):
        for s, tasks in enumerate(order):
            while place[s] < len(tasks):
                kind, k = tasks[place[s]]
                ends_here = kind == "weight" or s == (0 if kind == "forward" else stages - 1)
                if not ends_here and (kind, s, k) not in arrived:
                    break
                column = ("forward", "backward", "weight").index(kind) * stages + s
                clock[s] = add(clock[s], arrived.get((kind, s, k), clock[s]), column)
                to = {"forward": s + 1, "backward": s - 1, "weight": stages}[kind]
                if 0 <= to < stages:
                    sent = clock[s]
                    queues[kind, s] = add(queues.get((kind, s), sent), sent, 3 * stages + min(s, to))
                    arrived[kind, to, k] = queues[kind, s]
                place[s] += 1
    return _Tasks(tuple(after), tuple(waits), tuple(duration), tuple(clock))


def _ends_one_by_one(tasks: _Tasks, before: Array, durations: Array) -> Array:
    found = []
    for start, columns in zip(before.tolist(), durations.tolist(), strict=True):
        ends = list(start)
        for first, second, column in zip(tasks.after, tasks.waits, tasks.duration, strict=True):
            a, b = ends[first], ends[second]
            ends.append((a if a > b else b) + columns[column])
        found.append([ends[moment] for moment in tasks.last])
    return np.array(found)


def _ends_together(tasks: _Tasks, before: Array, durations: Array) -> Array:
    stages, columns = before.shape[1], np.ascontiguousarray(durations.T)
    ends = np.empty((stages + len(tasks.after), len(before)))
    ends[:stages] = before.T
    for first, second, column, own in zip(tasks.after, tasks.waits, tasks.duration, ends[stages:], strict=True):
        np.maximum(ends[first], ends[second], out=own)
        np.add(own, columns[column], out=own)
    last: Array = ends[list(tasks.last)].T
    return last
