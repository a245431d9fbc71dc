"""Pipeline schedules as pure task lists: what each stage does, in which order, and which messages pass between them.

Nothing here runs anything: the pipeline runner walks these lists, and the cost model takes their simulated timeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from automap_launch.plan import decision

# `weight` is the part of a backward pass that no other stage waits for: the gradients of the stage's own weights.
# `reduce` sums a stage's gradients once a step; `update` applies them, in rounds where stages depend on each other
# (the global norm of clipping).
# `hold` stands for the state that a stage begins with, `prepare` for what it computes once for all micro-batches.
Kind = Literal["hold", "prepare", "forward", "backward", "weight", "reduce", "update", "send", "receive"]

SCHEDULES = tuple(schedule for schedule in decision.SCHEDULES if schedule != "none")


@dataclass(frozen=True, slots=True)
class Task:
    """One thing a stage does.

    Attributes:
      kind: see `Kind`. stage: who does it.
      micro_batch: which one; for `update` the round; None in an `Edge`: each.
      peer, of: of a message its other end, and the kind of task that made what it carries.
    """

    kind: Kind
    stage: int
    micro_batch: int | None = 0
    peer: int | None = None
    of: Kind | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` needs something that `source` makes; both of the same micro-batch where that is None."""

    source: Task
    target: Task


Order = tuple[tuple[Task, ...], ...]  # for each stage its tasks, first to last


def compute_order(schedule: str, stages: int, micro_batches: int) -> Order:
    """Forward and backward tasks of each stage.

    - `gpipe`: all forward, then all backward. Holds the activations of every micro-batch.
    - `1f1b`: stage s runs at most `stages - s` micro-batches ahead; then one forward, one backward
      (PipeDream-flush, Narayanan et al. 2021). The same bubble as GPipe, bounded memory.
    - `zero_bubble`: backward passes in two halves, `backward` and `weight`; the second fills what would be idle time
      (ZB-H1, Qi et al. 2023). Activations of at most `stages` micro-batches.

    Raises:
      ValueError: an unknown schedule, or fewer than one stage or micro-batch.
    """
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"a pipeline has at least one stage and one micro-batch, got {stages} and {micro_batches}")
    if schedule == "gpipe":
        return tuple(_gpipe(stage, micro_batches) for stage in range(stages))
    if schedule == "1f1b":
        return tuple(_one_forward_one_backward(stage, stages, micro_batches) for stage in range(stages))
    if schedule == "zero_bubble":
        return _zero_bubble(stages, micro_batches)
    raise ValueError(f"schedule is {schedule!r}: expected one of {', '.join(SCHEDULES)}")


def chain(stages: int, *, weight: bool = False) -> tuple[Edge, ...]:
    """Dependencies of a model whose stages pass activations on, and gradients back. `weight`: see `Kind`."""
    edges = [Edge(Task("forward", s, None), Task("forward", s + 1, None)) for s in range(stages - 1)]
    edges += [Edge(Task("backward", s + 1, None), Task("backward", s, None)) for s in range(stages - 1)]
    edges += [Edge(Task("forward", s, None), Task("backward", s, None)) for s in range(stages)]
    if weight:
        edges += [Edge(Task("backward", s, None), Task("weight", s, None)) for s in range(stages)]
    return tuple(edges)


def with_messages(order: Order, edges: Iterable[Edge]) -> Order:
    """`order` with a `send` after each task whose results another stage needs, and the `receive` on the other side.

    One message carries all that a task makes for a stage. A pair of stages has one queue in each direction: the
    receiver takes messages in the order in which they are sent, each at the latest just before its first use.

    Raises:
      ValueError: an edge names a task that `order` does not have.
    """
    needs, targets = _needs(order, edges)
    sent: dict[tuple[int, int], list[Task]] = defaultdict(list)
    sending: list[list[Task]] = []
    for tasks in order:
        out: list[Task] = []
        for task in tasks:
            out.append(task)
            for peer in sorted(targets[task]):
                message = Task("send", task.stage, task.micro_batch, peer, task.kind)
                out.append(message)
                sent[task.stage, peer].append(message)
        sending.append(out)
    received: dict[tuple[int, int], int] = defaultdict(int)
    result: list[tuple[Task, ...]] = []
    for outgoing in sending:
        whole: list[Task] = []
        for task in outgoing:
            for source in sorted(needs[task], key=lambda t: (t.stage, t.kind)):
                queue = sent[source.stage, task.stage]
                place = queue.index(Task("send", source.stage, source.micro_batch, task.stage, source.kind))
                for message in queue[received[source.stage, task.stage] : place + 1]:
                    whole.append(Task("receive", task.stage, message.micro_batch, message.stage, message.of))
                received[source.stage, task.stage] = max(received[source.stage, task.stage], place + 1)
            whole.append(task)
        result.append(tuple(whole))
    return tuple(result)


@dataclass(frozen=True)
class Timeline:
    """One step, simulated.

    Attributes:
      step_seconds: from the first task's start to the last one's end.
      bubble: share of all stages' time in which they neither compute nor update.
      in_flight: for each stage, the most micro-batches whose activations it holds at a time.
      spans: start and end of every task that takes time, in seconds.
    """

    step_seconds: float
    bubble: float
    in_flight: tuple[int, ...]
    spans: Mapping[Task, tuple[float, float]] = field(repr=False)


def simulate(
    order: Order,
    seconds: Callable[[Task], float],
    edges: Iterable[Edge],
    *,
    message_seconds: Callable[[Task], float] = lambda _: 0.0,
) -> Timeline:
    """Runs `order` on a clock. Sends cost the stage nothing; a message occupies its queue for `message_seconds`.

    Args:
      order: as `with_messages` made it, or compute tasks alone (messages then take no time).
      seconds: duration of a compute task.
      edges: dependencies within a stage are checked too.
      message_seconds: by the `send` task.

    Raises:
      ValueError: tasks wait for each other for ever; names what each stage waits for.
    """
    has_messages = any(task.kind == "send" for tasks in order for task in tasks)
    needs, _ = _needs(order, edges, across=not has_messages, within=True)
    ended: dict[Task, float] = {}
    arrived: dict[Task, float] = {}
    queue_free: dict[tuple[int, int], float] = defaultdict(float)
    spans: dict[Task, tuple[float, float]] = {}
    place = [0] * len(order)
    clock = [0.0] * len(order)
    moved = True
    while moved:
        moved = False
        for stage, tasks in enumerate(order):
            while place[stage] < len(tasks):
                task = tasks[place[stage]]
                if task.kind == "send":
                    pair = (stage, task.peer or 0)
                    queue_free[pair] = max(queue_free[pair], clock[stage]) + message_seconds(task)
                    arrived[task] = queue_free[pair]
                elif task.kind == "receive":
                    source = Task("send", task.peer or 0, task.micro_batch, stage, task.of)
                    if source not in arrived:
                        break
                    clock[stage] = max(clock[stage], arrived[source])
                else:
                    if any(source not in ended for source in needs[task]):
                        break
                    start = max([clock[stage], *(ended[source] for source in needs[task])])
                    clock[stage] = ended[task] = start + seconds(task)
                    spans[task] = (start, ended[task])
                place[stage] += 1
                moved = True
    stuck = [tasks[place[s]] for s, tasks in enumerate(order) if place[s] < len(tasks)]
    if stuck:
        raise ValueError(f"the tasks wait for each other: {', '.join(map(str, stuck))}")
    total = max(clock, default=0.0)
    busy = sum(end - start for start, end in spans.values())
    bubble = 1 - busy / (total * len(order)) if total else 0.0
    return Timeline(total, bubble, tuple(_in_flight(tasks) for tasks in order), spans)


def merged(order: Order, edges: Iterable[Edge], seconds: Callable[[Task], float]) -> tuple[Task, ...]:
    """All stages' tasks in one list, as they would start: the order in which one process that has several stages
    dispatches them. `order`: with messages."""
    spans = simulate(order, seconds, edges).spans
    started: list[tuple[float, int, int, Task]] = []
    for stage, tasks in enumerate(order):
        start = 0.0
        for place, task in enumerate(tasks):
            if task.kind == "receive":
                # With the task that it is for, which cannot start before the message is there.
                following = next(t for t in tasks[place:] if t in spans)
                start = spans[following][0]
            elif task in spans:
                start = spans[task][0]
            started.append((start, stage, place, task))
    found: list[Task] = []
    sent: set[Task] = set()
    waiting = sorted(started, key=lambda s: s[:3])
    done = [0] * len(order)

    def may_go(stage: int, place: int, task: Task) -> bool:
        source = Task("send", task.peer or 0, task.micro_batch, stage, task.of)
        return place == done[stage] and (task.kind != "receive" or source in sent)

    while waiting:
        chosen = next(entry for entry in waiting if may_go(*entry[1:]))
        waiting.remove(chosen)
        done[chosen[1]] += 1
        found.append(chosen[3])
        if chosen[3].kind == "send":
            sent.add(chosen[3])
    return tuple(found)


def _gpipe(stage: int, micro_batches: int) -> tuple[Task, ...]:
    forward = [Task("forward", stage, k) for k in range(micro_batches)]
    return (*forward, *(Task("backward", stage, k) for k in range(micro_batches)))


def _one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> tuple[Task, ...]:
    ahead = min(stages - stage - 1, micro_batches)
    tasks = [Task("forward", stage, k) for k in range(ahead)]
    for k in range(micro_batches - ahead):
        tasks += [Task("forward", stage, ahead + k), Task("backward", stage, k)]
    return (*tasks, *(Task("backward", stage, k) for k in range(micro_batches - ahead, micro_batches)))


def _zero_bubble(stages: int, micro_batches: int) -> Order:
    """List schedule with tasks of one unit each: a forward first, as far ahead of its backward as in `1f1b` and while
    fewer than `stages` micro-batches are held; then a backward; then, where else a stage would idle, a weight."""
    order: list[list[Task]] = [[] for _ in range(stages)]
    done: set[Task] = set()
    forward, backward, weight = [0] * stages, [0] * stages, [0] * stages
    while min(weight) < micro_batches:
        started: list[Task] = []
        for s in range(stages):
            f, b = Task("forward", s, forward[s]), Task("backward", s, backward[s])
            f_ready = s == 0 or replace(f, stage=s - 1) in done
            b_ready = replace(b, kind="forward") in done and (s == stages - 1 or replace(b, stage=s + 1) in done)
            room = forward[s] - backward[s] < stages - s and forward[s] - weight[s] < stages
            if forward[s] < micro_batches and f_ready and room:
                started.append(f)
                forward[s] += 1
            elif backward[s] < micro_batches and b_ready:
                started.append(b)
                backward[s] += 1
            elif weight[s] < backward[s]:
                started.append(Task("weight", s, weight[s]))
                weight[s] += 1
        done.update(started)
        for task in started:
            order[task.stage].append(task)
    return tuple(map(tuple, order))


def _needs(
    order: Order, edges: Iterable[Edge], *, across: bool = True, within: bool = False
) -> tuple[Mapping[Task, list[Task]], Mapping[Task, set[int]]]:
    """For each task the tasks it needs (of other stages, of its own), and the other stages that need it."""
    known = {task for tasks in order for task in tasks}
    micro = {task.micro_batch for task in known if task.kind in ("forward", "backward", "weight")}
    needs: dict[Task, list[Task]] = defaultdict(list)
    targets: dict[Task, set[int]] = defaultdict(set)
    for edge in edges:
        each = edge.source.micro_batch is None or edge.target.micro_batch is None
        for k in micro if each else {0}:
            ends = [replace(t, micro_batch=k) if t.micro_batch is None else t for t in (edge.source, edge.target)]
            if not known.issuperset(ends):
                raise ValueError(f"{ends[0]} -> {ends[1]}: the order has no such task")
            source, target = ends
            if source.stage == target.stage:
                if within:
                    needs[target].append(source)
                continue
            if across:
                needs[target].append(source)
            targets[source].add(target.stage)
    return needs, targets


def _in_flight(tasks: Sequence[Task]) -> int:
    """Activations are held from a micro-batch's forward to its backward, or to its weight where there is one."""
    last = "weight" if any(task.kind == "weight" for task in tasks) else "backward"
    held = peak = 0
    for task in tasks:
        held += (task.kind == "forward") - (task.kind == last)
        peak = max(peak, held)
    return peak
