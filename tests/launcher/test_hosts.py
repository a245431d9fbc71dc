"""Launches over two hosts: two launchers on this machine, which know of each other only by TCP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from automap_launch.launcher.host_group import HostGroup
from automap_launch.launcher.place import Place
from automap_launch.launcher.ports import free_port
from automap_launch.launcher.supervisor import LaunchResult, launch
from tests.equality import assert_equal, load_dump
from tests.launcher.harness import Room, eventually, launcher_config, make_room, nothing_left_of
from tests.recipes.runs import QUICKSTART, plain_dump

# Two processes on each host.
FAILS_ON_HOST_1 = """
if rank == 3 and attempt == 0:
    fail("ValueError: bad batch", 5)
if attempt == 0:
    time.sleep(60)
print("rank", rank, "of", os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"])
if rank % 2 == 0:
    event(event="hello", rank=rank)
"""


def two_hosts(folder: Path, program: str, **config: int) -> list[tuple[Room, LaunchResult]]:
    """Both launches, in a thread each."""
    coordinator = f"127.0.0.1:{free_port()}"

    def run(host: int) -> tuple[Room, LaunchResult]:
        (folder / str(host)).mkdir()
        room = make_room(folder / str(host), program, processes=4)
        spec = replace(room.spec, hosts=2, host=host)
        command = [sys.executable, str(room.program)]
        with closing(HostGroup.meet(Place(2, host, coordinator), 20.0)) as group:
            result = launch(
                spec,
                launcher_config(**config),
                room.folder,
                room.events.append,
                room.terminal,
                group=group,
                command=command,
            )
        return room, result

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def test_a_failure_on_one_host_is_the_failure_of_all(tmp_path):
    started = time.monotonic()
    (first, result_0), (second, result_1) = two_hosts(tmp_path, FAILS_ON_HOST_1)
    assert time.monotonic() - started < 30
    for room, result in ((first, result_0), (second, result_1)):
        assert (result.exit_code, result.attempts) == (5, 1)
        assert (result.failure.rank, result.failure.message) == (3, "ValueError: bad batch")
        assert "rank 3 on here: ValueError: bad batch at train.py:7 (exit code 5)" in room.terminal.getvalue()
        assert str(second.folder.rank_log(3)) in room.terminal.getvalue()
    assert result_1.failure.traceback_path == "logs/rank_3.log"


def test_all_hosts_start_again_together(tmp_path):
    (first, result_0), (second, result_1) = two_hosts(tmp_path, FAILS_ON_HOST_1, max_restarts=1)
    assert [(r.exit_code, r.attempts, r.failure) for r in (result_0, result_1)] == [(0, 2, None)] * 2
    for room, ranks in ((first, (0, 1)), (second, (2, 3))):
        assert [room.log(rank, 1) for rank in ranks] == [f"rank {rank} of 4 {rank % 2} 2\n" for rank in ranks]
        assert room.events == [{"event": "hello", "rank": ranks[0]}]
    assert "rank 0" in first.terminal.getvalue()
    assert "rank 2 of" not in second.terminal.getvalue()  # rank 0's output alone is shown


@pytest.mark.parametrize("told", [0, 1])
def test_a_signal_to_one_host_ends_both_as_that_signal(tmp_path, told):
    coordinator = f"127.0.0.1:{free_port()}"
    rooms, hosts, workers = [], [], []
    for host in range(2):
        (tmp_path / str(host)).mkdir()
        room = make_room(tmp_path / str(host), "touch(f'up_{rank}')\ntime.sleep(60)", processes=4)
        room.given = replace(room.spec, hosts=2, host=host, coordinator=coordinator)
        rooms.append(room)
        hosts.append(room.launcher_process(max_restarts=3))
    for room, ranks in zip(rooms, ((0, 1), (2, 3)), strict=True):
        workers += room.wait_for(*(f"up_{rank}" for rank in ranks))
    signalled = time.monotonic()
    hosts[told].send_signal(signal.SIGTERM)
    try:
        assert [host.wait(20) for host in hosts] == [143, 143]
    finally:
        for host in hosts:
            host.kill()
            host.communicate()
    assert time.monotonic() - signalled < 10
    assert nothing_left_of(workers)
    for room in rooms:
        result = json.loads((room.folder.root / "result.json").read_text())
        assert (result["failure"]["kind"], result["failure"]["signal"], result["attempts"]) == ("signal", "SIGTERM", 1)


# With real workers


@pytest.fixture
def start(tmp_path):
    """Starts `automap-launch` on a host; all processes are gone at the end."""
    coordinator = f"127.0.0.1:{free_port()}"
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(CLUSTER))
    processes = []

    def start_host(host: int, arguments: list[str], *overrides: str, cluster: str = "") -> subprocess.Popen[str]:
        folder = tmp_path / f"host_{host}"
        folder.mkdir()
        hosts = ["launcher.hosts=2", f"launcher.host={host}", f"launcher.coordinator={coordinator}"]
        cluster = cluster or f"cluster.file={tmp_path / 'two.yaml'}"
        command = ["-m", "automap_launch", "--json", cluster, *hosts, *overrides]
        with (folder / "terminal.txt").open("w") as terminal:
            process = subprocess.Popen(
                [sys.executable, *command, "tracking=none", "search=heuristic", "--", *arguments],
                cwd=folder,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=terminal,
                text=True,
            )
        processes.append(process)
        return process

    yield start_host
    for process in processes:
        process.kill()
        process.wait()


CLUSTER = {
    "schema": 1,
    "name": "two",
    "platform": "cpu",
    "hosts": 2,
    "devices_per_host": 4,
    "device": {
        "name": "cpu",
        "peak_flops": {"float32": 2e10},
        "memory_bytes": 4 * 10**9,
        "memory_bandwidth": 2e9,
    },
    "links": [
        {"scope": "host", "alpha_s": 5e-5, "beta_s_per_byte": 5e-10},
        {"scope": "network", "alpha_s": 2e-4, "beta_s_per_byte": 2e-9},
    ],
    "source": "made up",
}


def summary_of(process: subprocess.Popen[str], folder: Path) -> dict:
    return json.loads((folder / process.communicate(timeout=240)[0].strip()).read_text())


@pytest.mark.slow
def test_the_quickstart_on_two_hosts_equals_the_plain_run(tmp_path, start):
    arguments = ["--steps", "20", "--eval-batches", "1"]
    pins = ("search.pin.data=4", "search.pin.model=2")
    dump = tmp_path / "launched.npz"
    hosts = [start(host, [str(QUICKSTART), *arguments, "--dump", str(dump)], *pins) for host in range(2)]
    summaries = [summary_of(process, tmp_path / f"host_{host}") for host, process in enumerate(hosts)]
    assert [process.returncode for process in hosts] == [0, 0], (tmp_path / "host_0" / "terminal.txt").read_text()
    assert [s["plan"]["mesh"] for s in summaries] == [{"data": 4, "model": 2}] * 2
    assert (summaries[0]["train"]["devices"], summaries[0]["train"]["processes"]) == (8, 2)
    reference = plain_dump(QUICKSTART, arguments, tmp_path)
    assert_equal(reference, load_dump(dump), plain_dump(QUICKSTART, [*arguments, "--permute-rows"], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "code", "message"),
    [
        ("cluster=v100_2x8", 4, "this machine has 0 device(s) of platform cuda"),
        ("cluster=v100_4x8", 4, "v100_4x8 has 4 hosts, and launcher.hosts=2"),
        ("cluster=local", 2, "cluster=local is this host alone"),
    ],
)
def test_a_host_that_is_none_of_the_clusters_does_not_wait_for_others(cluster, code, message, tmp_path, start):
    process = start(0, [str(QUICKSTART)], cluster=cluster)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert message in (tmp_path / "host_0" / "terminal.txt").read_text()


@pytest.mark.slow
def test_a_host_that_is_killed_ends_the_others_and_is_named(tmp_path, start):
    hosts = [start(host, [str(QUICKSTART), "--steps", "100000"]) for host in range(2)]
    terminal = tmp_path / "host_0" / "terminal.txt"
    eventually(lambda: "compiled the step" in terminal.read_text(), "training has begun", 200)
    hosts[1].send_signal(signal.SIGKILL)
    summary = summary_of(hosts[0], tmp_path / "host_0")
    assert hosts[0].returncode == 1
    assert re.match(r"host 1 \(.+\) has gone", summary["error"]["message"])
    assert summary["error"]["kind"] == "worker"
    assert "host 1" in terminal.read_text()
