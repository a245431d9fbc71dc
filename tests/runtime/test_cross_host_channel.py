"""Which calls each process makes for messages that JAX copies from host to host, with a transport that counts them as
JAX does: the ends of a transfer meet by the number of the call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest

from automap_launch.errors import PlanError
from automap_launch.runtime.channel import LocalChannel, Message
from automap_launch.runtime.choose_channel import choose_channel
from automap_launch.runtime.cross_host_channel import CrossHostChannel
from automap_launch.runtime.process_channel import ProcessChannel
from automap_launch.runtime.schedules import SCHEDULES, Edge, Task, chain, compute_order, merged, with_messages


@dataclass(frozen=True)
class Device:
    id: int
    process_index: int


@dataclass(frozen=True)
class Sharding:
    device_set: frozenset[Device]


class Wires:
    """What is under way between the processes: by number of the call, as its sender made it."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Task]] = defaultdict(list)
        self.sent: dict[tuple[Task, int], Any] = {}


class Counting:
    """The transport of one process. A transfer across processes is known by how many were before it."""

    def __init__(self, wires: Wires, own: int) -> None:
        self.wires = wires
        self.own = own

    def move(self, message: Message, values: Any) -> Any:
        number = len(self.wires.calls[self.own])
        here, there = ({d.process_index for d in s[0].device_set} for s in (message.sources, message.targets))
        assert (values is not None) == (self.own in here)
        if here == there:
            return values
        self.wires.calls[self.own].append(message.task)
        if values is not None:
            self.wires.sent[message.task, number] = values
            return values
        return self.wires.sent[message.task, number] if self.own in there else []


def placed(stages: int, devices_of_stage: int, devices_of_process: int) -> list[Sharding]:
    devices = [Device(i, i // devices_of_process) for i in range(stages * devices_of_stage)]
    return [Sharding(frozenset(devices[s * devices_of_stage :][:devices_of_stage])) for s in range(stages)]


def edges_of(schedule: str, stages: int) -> list[Edge]:
    """Neighbours talk, and the first and the last stage (tied weights)."""
    ends = [Edge(Task("forward", 0, None), Task("backward", stages - 1, None))] if stages > 2 else []
    return [*chain(stages, weight=schedule == "zero_bubble"), *ends]


def run(schedule: str, stages: int, micro_batches: int, layout: list[Sharding]) -> Wires:
    """Two steps of all processes, in the order in which one process would dispatch all stages."""
    edges = edges_of(schedule, stages)
    order = with_messages(compute_order(schedule, stages, micro_batches), edges)
    tasks = merged(order, edges, lambda task: 1.0)
    messages = {t: Message(t, (), (layout[t.stage],), (layout[t.peer or 0],)) for t in tasks if t.kind == "send"}
    processes = {device.process_index for sharding in layout for device in sharding.device_set}
    wires = Wires()
    channels = {p: CrossHostChannel(list(messages.values()), Counting(wires, p), p) for p in processes}
    for step in range(2):
        for channel in channels.values():
            channel.begin()
        for task in tasks:
            for process in {device.process_index for device in layout[task.stage].device_set}:
                if task.kind == "send":
                    channels[process].send(messages[task], [(step, task)])  # type: ignore[list-item]
                elif task.kind == "receive":
                    sent = Task("send", task.peer or 0, task.micro_batch, task.stage, task.of)
                    assert channels[process].receive(messages[sent]) == [(step, sent)]
    return wires


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stage", "process"), [(1, 1), (2, 2), (4, 2), (1, 2), (2, 4), (3, 2)])
def test_every_process_makes_the_same_calls_and_gets_what_was_sent(schedule: str, stage: int, process: int) -> None:
    for stages, micro_batches in ((2, 1), (4, 8), (8, 3), (8, 32)):
        wires = run(schedule, stages, micro_batches, placed(stages, stage, process))
        calls = list(wires.calls.values())
        assert len(calls) == 0 or len(calls) == (stages * stage + process - 1) // process
        assert all(one == calls[0] for one in calls)


def test_what_is_sent_out_of_turn_is_an_error() -> None:
    layout = placed(2, 1, 1)
    first, second = (Message(Task("send", 0, k, 1, "forward"), (), (layout[0],), (layout[1],)) for k in range(2))
    channel = CrossHostChannel([first, second], Counting(Wires(), 0), 0)
    channel.begin()
    with pytest.raises(RuntimeError, match="to be sent before"):
        channel.send(second, [])
    with pytest.raises(RuntimeError, match="a step ended before"):
        channel.begin()


def test_stages_that_share_several_processes_are_refused() -> None:
    devices = [Device(i, i % 2) for i in range(4)]
    layout = [Sharding(frozenset(devices[:2])), Sharding(frozenset(devices[2:]))]
    message = Message(Task("send", 0, 0, 1, "forward"), (), (layout[0],), (layout[1],))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="stages 0 and 1 both lie on processes"):
        CrossHostChannel([message], Counting(Wires(), 0), 0)


@pytest.mark.parametrize(
    ("processes", "platform", "expected"),
    [
        (1, "cpu", LocalChannel),
        (1, "gpu", LocalChannel),
        (2, "cpu", ProcessChannel),
        (2, "gpu", CrossHostChannel),
        (2, "tpu", CrossHostChannel),
    ],
)
def test_the_channel_goes_by_processes_and_platform(processes: int, platform: str, expected: type) -> None:
    assert type(choose_channel(processes, platform)([])) is expected
