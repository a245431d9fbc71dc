"""Task lists: complete, consistent in their messages, free of deadlock, with the bubble that theory gives."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest

from automap_launch.runtime.schedules import (
    SCHEDULES,
    Edge,
    Order,
    Task,
    chain,
    compute_order,
    merged,
    simulate,
    with_messages,
)

SIZES = [(s, m) for s in range(1, 9) for m in (*range(1, 10), 16, 31, 32)]


def edges_of(schedule: str, stages: int) -> tuple[Edge, ...]:
    return chain(stages, weight=schedule == "zero_bubble")


def skips(stages: int) -> tuple[Edge, ...]:
    """Every stage's activations go to all later ones, every stage's gradients to all earlier ones."""
    pairs = list(itertools.combinations(range(stages), 2))
    forward = [Edge(Task("forward", a, None), Task("forward", b, None)) for a, b in pairs]
    return (*forward, *(Edge(Task("backward", b, None), Task("backward", a, None)) for a, b in pairs))


def unit(task: Task) -> float:
    return 1.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_task_is_there_once_and_messages_are_consistent_and_free_of_deadlock(schedule: str) -> None:
    for stages, micro_batches in SIZES:
        order = compute_order(schedule, stages, micro_batches)
        kinds = ("forward", "backward", "weight") if schedule == "zero_bubble" else ("forward", "backward")
        for stage, tasks in enumerate(order):
            assert len(tasks) == len(set(tasks))
            assert set(tasks) == {Task(kind, stage, k) for kind in kinds for k in range(micro_batches)}  # type: ignore[arg-type]
        for edges in (edges_of(schedule, stages), (*edges_of(schedule, stages), *skips(stages))):
            whole = with_messages(order, edges)
            check_queues(whole)
            simulate(whole, unit, edges, message_seconds=lambda _: 0.5)


def check_queues(order: Order) -> None:
    """What one side of a pair sends is what the other receives, in the same order."""
    sent: dict[Any, list[Any]] = defaultdict(list)
    received: dict[Any, list[Any]] = defaultdict(list)
    for task in itertools.chain(*order):
        if task.kind == "send":
            sent[task.stage, task.peer].append((task.micro_batch, task.of))
        elif task.kind == "receive":
            received[task.peer, task.stage].append((task.micro_batch, task.of))
    assert sent == received


def test_swapped_messages_and_missing_sends_are_found() -> None:
    """The checks above can fail."""
    edges = chain(2)
    good = with_messages(compute_order("1f1b", 2, 4), edges)
    second = list(good[1])
    first, other = [i for i, t in enumerate(second) if t.kind == "receive"][:2]
    second[first], second[other] = second[other], second[first]
    with pytest.raises(AssertionError):
        check_queues((good[0], tuple(second)))
    without = tuple(t for t in good[0] if t.kind != "send")
    with pytest.raises(ValueError, match="wait for each other"):
        simulate((without, good[1]), unit, edges)
    crossed = (Task("backward", 0), Task("forward", 0)), (Task("forward", 1), Task("backward", 1))
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(crossed, unit, edges)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 32)])
def test_bubble_and_activations_are_those_of_theory(stages: int, micro_batches: int) -> None:
    def seconds(task: Task) -> float:
        return 2.0 if task.kind == "backward" else 1.0

    ideal = (stages - 1) / (stages - 1 + micro_batches)
    gpipe, one = (
        simulate(compute_order(name, stages, micro_batches), seconds, chain(stages)) for name in ("gpipe", "1f1b")
    )
    for timeline in (gpipe, one):
        assert timeline.step_seconds == 3 * (micro_batches + stages - 1)
        assert timeline.bubble == pytest.approx(ideal)
    assert gpipe.in_flight == (micro_batches,) * stages
    assert one.in_flight == tuple(min(stages - s, micro_batches) for s in range(stages))
    halves = simulate(compute_order("zero_bubble", stages, micro_batches), unit, chain(stages, weight=True))
    assert max(halves.in_flight) <= stages
    # ZB-H1: (stages - 1) x (forward + backward - weight) of idle time, a third of the others'.
    assert halves.step_seconds - 3 * micro_batches == stages - 1
    assert halves.bubble < 0.5 * ideal


def test_slow_messages_and_slow_stages_lengthen_the_step() -> None:
    edges = chain(4)
    order = with_messages(compute_order("1f1b", 4, 8), edges)
    fast = simulate(order, unit, edges)
    late = simulate(order, unit, edges, message_seconds=lambda task: 0.5)
    slow = simulate(order, lambda task: 3.0 if task.stage == 2 else 1.0, edges)
    assert fast.step_seconds == 22
    assert fast.step_seconds < late.step_seconds < fast.step_seconds + 0.5 * 32
    assert slow.step_seconds >= 8 * 6


def test_once_a_step_tasks_take_part() -> None:
    """Gradients reduced on each stage, norms exchanged in round 0, weights updated in round 1."""
    tail = lambda s: (Task("reduce", s), Task("update", s, 0), Task("update", s, 1))  # noqa: E731
    order = tuple((*tasks, *tail(s)) for s, tasks in enumerate(compute_order("gpipe", 2, 2)))
    edges = [
        *chain(2),
        Edge(Task("update", 1, 0), Task("update", 0, 1)),
        Edge(Task("update", 0, 0), Task("update", 1, 1)),
    ]
    whole = with_messages(order, edges)
    check_queues(whole)
    timeline = simulate(whole, unit, edges)
    assert timeline.spans[Task("update", 1, 1)][0] >= timeline.spans[Task("update", 0, 0)][1]


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="one of gpipe, 1f1b, zero_bubble"):
        compute_order("2f2b", 2, 2)
    with pytest.raises(ValueError, match="at least one stage"):
        compute_order("gpipe", 0, 2)
    with pytest.raises(ValueError, match="no such task"):
        with_messages(compute_order("gpipe", 2, 2), chain(3))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_process_dispatches_all_stages_in_an_order_that_each_stage_and_each_message_keeps(schedule: str) -> None:
    for stages, micro_batches in ((1, 3), (3, 5), (4, 8)):
        edges = edges_of(schedule, stages)
        order = with_messages(compute_order(schedule, stages, micro_batches), edges)
        found = merged(order, edges, unit)
        assert tuple(tuple(t for t in found if t.stage == s) for s in range(stages)) == order
        place = {task: i for i, task in enumerate(found)}
        for task in found:
            if task.kind == "receive":
                assert place[Task("send", task.peer or 0, task.micro_batch, task.stage, task.of)] < place[task]
        # The last stage begins before the first has dispatched all: devices do not wait for each other's dispatch.
        if stages > 1:
            assert place[Task("forward", stages - 1, 0)] < place[Task("forward", 0, micro_batches - 1)]


def processes_of(stages: int, devices_of_stage: int, devices_of_process: int) -> list[frozenset[int]]:
    """Of each stage, with its devices in a row."""
    return [
        frozenset(device // devices_of_process for device in range(s * devices_of_stage, (s + 1) * devices_of_stage))
        for s in range(stages)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stage", "process"), [(1, 1), (1, 2), (2, 1), (4, 2), (3, 2)])
def test_both_processes_of_a_pair_have_its_messages_in_one_order_and_none_waits_for_ever(
    schedule: str, stage: int, process: int
) -> None:
    """Each process walks its stages' tasks, one after the other, and stops at a message that is not yet sent."""
    for stages, micro_batches in ((2, 1), (2, 32), (3, 7), (4, 8), (8, 3), (8, 32)):
        edges = (*edges_of(schedule, stages), *skips(stages))
        tasks = merged(with_messages(compute_order(schedule, stages, micro_batches), edges), edges, unit)
        lies_in = processes_of(stages, stage, process)
        everyone = sorted(frozenset().union(*lies_in))
        messages = [t for t in tasks if t.kind == "send"]
        own = {p: [t for t in tasks if p in lies_in[t.stage]] for p in everyone}
        for one, other in itertools.permutations(everyone, 2):
            known = [m for m in messages if one in lies_in[m.stage] and other in lies_in[m.peer or 0]]
            assert [t for t in own[one] if t.kind == "send" and other in lies_in[t.peer or 0]] == known
        place = dict.fromkeys(everyone, 0)
        sent: dict[int, set[Task]] = {p: set() for p in everyone}
        moved = True
        while moved:
            moved = False
            for p in everyone:
                while place[p] < len(own[p]):
                    task = own[p][place[p]]
                    if task.kind == "send":
                        sent[p].add(task)
                    elif task.kind == "receive":
                        source = Task("send", task.peer or 0, task.micro_batch, task.stage, task.of)
                        if any(source not in sent[q] for q in lies_in[source.stage]):
                            break
                    place[p] += 1
                    moved = True
        assert place == {p: len(own[p]) for p in everyone}
