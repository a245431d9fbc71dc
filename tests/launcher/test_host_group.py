"""Launchers that meet over TCP: rounds, and what they hear of each other's ends."""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pytest

from automap_launch.errors import ConfigError, WorkerError
from automap_launch.launcher.host_group import HostGroup
from automap_launch.launcher.place import Place
from automap_launch.launcher.ports import free_port


def places(hosts: int) -> list[Place]:
    coordinator = f"127.0.0.1:{free_port()}"
    return [Place(hosts, host, coordinator) for host in range(hosts)]


def on_all(hosts, function) -> list[Future]:
    """`function(host)` on each of them at the same time."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return [pool.submit(function, host) for host in hosts]


def meet(hosts: int) -> list[HostGroup]:
    return [f.result() for f in on_all(places(hosts), lambda place: HostGroup.meet(place, 20.0))]


@pytest.fixture
def three():
    groups = meet(3)
    yield groups
    for group in groups:
        group.close()


def test_all_get_the_values_of_all_round_after_round(three):
    def talk(group):
        return [group.exchange({"from": group.place.host, "round": n}) for n in range(20)]

    expected = [[{"from": host, "round": n} for host in range(3)] for n in range(20)]
    assert [f.result() for f in on_all(three, talk)] == [expected] * 3
    assert three[2].names == [socket.gethostname()] * 3


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_told_at_once_and_only_in_its_round(three, failing):
    told = [queue.SimpleQueue() for _ in three]

    def run(group):
        me = group.place.host
        with group.watch(told[me].put):
            if me != failing:
                assert told[me].get(timeout=10) == failing  # while the others have not come to the end of the round
        first = group.exchange(me, failed=me == failing)
        with group.watch(told[me].put):
            second = group.exchange(me)
        return first, second

    assert [f.result() for f in on_all(three, run)] == [([0, 1, 2], [0, 1, 2])] * 3
    assert all(messages.empty() for messages in told)


@pytest.mark.parametrize("leaving", [0, 2])
def test_a_host_that_goes_is_told_and_missed(three, leaving):
    told = [queue.SimpleQueue() for _ in three]

    def run(group):
        me = group.place.host
        if me == leaving:
            group.close()
            return None
        with group.watch(told[me].put):
            assert told[me].get(timeout=10) == leaving
        values = group.exchange(me)
        with pytest.raises(WorkerError, match=rf"host {leaving} \(.+\) has gone while it was tested"):
            group.require_all("it was tested")
        return values[me], values[leaving]

    found = [f.result() for f in on_all(three, run)]
    assert [pair for pair in found if pair is not None] == [(me, None) for me in range(3) if me != leaving]


def test_one_that_will_wait_no_longer_goes_on_alone(three):
    assert three[1].exchange("mine", give_up=lambda: True) == [None, "mine", None]


def test_hosts_that_do_not_belong_together_are_told_why():
    first, second = places(2)
    others = [Place(3, 1, first.coordinator), Place(2, 1, first.coordinator)]
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(HostGroup.meet, first, 20.0)
        with pytest.raises(ConfigError, match=r"started with launcher\.hosts=2, this one with 3"):
            HostGroup.meet(others[0], 20.0)
        with closing(socket.create_connection((first.address, first.port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\n")
            assert b"refused" in stranger.recv(1000)
        with closing(HostGroup.meet(second, 20.0)), closing(server.result()) as group:
            assert group.place == first


def test_hosts_that_do_not_come_are_named():
    first, second = places(2)
    with pytest.raises(WorkerError, match=r"of 2 hosts, these had not come within 300 ms: 1"):
        HostGroup.meet(first, 0.3)
    with pytest.raises(WorkerError, match=r"host 0 did not answer at 127\.0\.0\.1:\d+ within 300 ms") as failure:
        HostGroup.meet(second, 0.3)
    assert "localhost are this host itself" in failure.value.hint


def test_a_port_that_is_taken_is_named():
    first, _ = places(2)
    with socket.socket() as taken:
        taken.bind(("", first.port))
        taken.listen()
        with pytest.raises(WorkerError, match=f"cannot listen on port {first.port}"):
            HostGroup.meet(first, 5.0)


def test_no_thread_is_left():
    before = threading.active_count()
    for group in meet(2):
        group.close()
    for thread in threading.enumerate():
        if thread.name.startswith("messages of host"):
            thread.join(5)
    assert threading.active_count() == before
