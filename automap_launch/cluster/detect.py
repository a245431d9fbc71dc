"""`detect_local`: this machine as a `Cluster`, measured once and remembered. `calibrate`: the same, measured in full.

The measuring is done by child processes (`measure.py`): the caller never starts a backend, so it may start workers
afterwards that need the devices for themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform as host_platform
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from automap_launch.cluster.cluster import PLATFORMS, Cluster, Device, Link
from automap_launch.cluster.collectives import rounds, share_sent
from automap_launch.cluster.curves import Curves
from automap_launch.cluster.file import load_cluster, save_cluster
from automap_launch.cluster.known_devices import corrected_peaks
from automap_launch.errors import ConfigError
from automap_launch.records import read_record
from automap_launch.resources import cache_folder

# JAX's name of a platform, and ours.
_OURS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
_MOST_CPU_DEVICES = 8
_TIMEOUT_SECONDS = 180.0
_CALIBRATION_TIMEOUT_SECONDS = 1800.0
# Changes whenever what is measured, or how, does: older cache entries no longer count.
_METHOD = 2


def detect_local(platform: str | None = None, devices: int | None = None, processes: int = 1) -> Cluster:
    """This machine: what its devices can do while all are busy, and what an all-reduce over them costs.

    A calibration of this machine is used where there is one; else some seconds of measuring stand in for it.

    Args:
      platform: `cpu`, `cuda` or `tpu`; None: JAX's choice.
      devices: how many of the machine's devices, shared by all processes; None: all of an accelerator's, and of a
        CPU's JAX_NUM_CPU_DEVICES, else one a core up to 8.
      processes: worker processes that the devices are spread over evenly.

    Raises:
      ConfigError: there is no such platform or number of devices here, or measuring failed.
    """
    _check(platform, devices, processes)
    for calibrated in (True, False):
        cached = _cache_file(platform, devices, processes, calibrated)
        if cached.is_file():
            try:
                return load_cluster(cached)
            except ConfigError:
                # A damaged or outdated entry is no reason to fail: the machine is measured anew.
                cached.unlink(missing_ok=True)
    return _measured_cluster(platform, devices, processes, calibrated=False)


def calibrate(platform: str | None = None, devices: int | None = None, processes: int = 1) -> Cluster:
    """This machine with all `Curves`: times of matrix products by shape, of memory traffic and collectives by size.

    It takes a minute or two and replaces any earlier calibration; `detect_local` finds it.

    Args and errors: as `detect_local`.
    """
    _check(platform, devices, processes)
    return _measured_cluster(platform, devices, processes, calibrated=True)


def _check(platform: str | None, devices: int | None, processes: int) -> None:
    if platform is not None and platform not in PLATFORMS:
        raise ConfigError(f"cluster.platform is one of auto, {', '.join(PLATFORMS)}, got {platform!r}")
    if devices is not None and devices % processes:
        raise ConfigError(
            f"{devices} devices cannot be shared evenly by {processes} processes",
            hint="set cluster.devices to a multiple of launcher.processes",
        )


def _measured_cluster(platform: str | None, devices: int | None, processes: int, calibrated: bool) -> Cluster:
    """Measures the machine and remembers it."""
    cluster = _cluster(_measure(platform, devices, processes, calibrated))
    cached = _cache_file(platform, devices, processes, calibrated)
    try:
        save_cluster(cluster, cached)
    except OSError as error:
        print(f"automap-launch: could not remember this machine's speed in {cached}: {error}", file=sys.stderr)
    return cluster


def _cpu_devices(processes: int) -> int:
    """How many virtual CPU devices to use where the user does not say."""
    asked = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    count = int(asked) if asked.isdigit() and int(asked) > 0 else min(_MOST_CPU_DEVICES, _cores())
    return max(count // processes, 1) * processes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_file(platform: str | None, devices: int | None, processes: int, calibrated: bool) -> Path:
    """Where the measurement, or the calibration, of this machine for this many devices is kept.

    What the caller has named cannot be changed by the environment, which then does not count.
    """
    chooses = ["XLA_FLAGS"] if platform == "cpu" else ["XLA_FLAGS", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"]
    key = {
        "method": _METHOD,
        "machine": [host_platform.node(), host_platform.machine(), _cores()],
        "environment": [os.environ.get(name) for name in chooses],
        "platform": platform,
        "devices": devices,
        "cpu_devices": _cpu_devices(processes) if devices is None else None,
        "processes": processes,
        "jaxlib": version("jaxlib"),
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"{'calibrated' if calibrated else 'local'}-{digest}.yaml"


def _measure(platform: str | None, devices: int | None, processes: int, curves: bool) -> dict[str, Any]:
    """Runs one measuring process a rank; the answer of rank 0 (`measure.Measured`)."""
    with tempfile.TemporaryDirectory(prefix="automap-launch-") as name:
        folder = Path(name)
        coordinator = f"localhost:{_free_port()}"
        answer = folder / "answer.json"
        children = []
        for rank in range(processes):
            request = folder / f"request_{rank}.json"
            request.write_text(
                json.dumps(
                    {
                        "platform": platform,
                        "devices": devices,
                        "processes": processes,
                        "rank": rank,
                        "coordinator": coordinator,
                        "answer": str(answer),
                        "curves": curves,
                    }
                )
            )
            children.append(_start(request, _environment(platform, devices, processes), folder / f"log_{rank}"))
        failed = _wait(children, _CALIBRATION_TIMEOUT_SECONDS if curves else _TIMEOUT_SECONDS)
        if failed is not None or not answer.is_file():
            log = (folder / f"log_{failed or 0}").read_text(errors="replace").strip()
            reason = log.splitlines()[-1] if log else "it wrote nothing"
            raise ConfigError(
                f"this machine could not be measured (cluster.platform={platform or 'auto'}, "
                f"cluster.devices={devices or 'all'}, launcher.processes={processes}): {reason}",
                hint="cluster.platform and cluster.devices choose what is used; cluster=NAME takes a description",
            )
        record: dict[str, Any] = json.loads(answer.read_text())
        return record


def _environment(platform: str | None, devices: int | None, processes: int) -> dict[str, str]:
    environment = dict(os.environ)
    each = (devices or _cpu_devices(processes)) // processes
    environment["JAX_NUM_CPU_DEVICES"] = str(each)
    if platform == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    elif platform is not None:
        environment.pop("JAX_PLATFORMS", None)
    return environment


def _start(request: Path, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "automap_launch.cluster.measure", str(request)]
    with log.open("wb") as stream:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )


def _wait(children: list[subprocess.Popen[bytes]], timeout: float) -> int | None:
    """Waits for all children; the rank of the first that failed, or None. None is left behind."""
    deadline = time.monotonic() + timeout
    try:
        while True:
            codes = [child.poll() for child in children]
            failed = next((rank for rank, code in enumerate(codes) if code not in (None, 0)), None)
            if failed is not None or None not in codes:
                return failed
            if time.monotonic() > deadline:
                return codes.index(None)
            time.sleep(0.02)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def _cluster(measured: dict[str, Any]) -> Cluster:
    """The measurement as a cluster of one host."""
    devices = measured["devices"]
    device = Device(
        name=measured["kind"],
        peak_flops=corrected_peaks(measured["kind"], measured["matmul_flops"]),
        memory_bytes=measured["memory_bytes"],
        memory_bandwidth=measured["memory_bandwidth"],
    )
    links = (_link(measured["all_reduce"], devices),) if devices > 1 else ()
    how = "measured" if measured["curves"] is None else "calibrated"
    curves = measured["curves"] or {name: measured[name] for name in ("op_seconds", "alone_speedup")}
    return Cluster(
        name="local",
        platform=_OURS[measured["platform"]],
        hosts=1,
        devices_per_host=devices,
        device=device,
        links=links,
        curves=read_record(Curves, curves, "curves"),
        source=f"{how} on {host_platform.node()}",
    )


def _link(all_reduce: dict[str, float], devices: int) -> Link:
    """Alpha and beta of the ring model from two all-reduces, a small and a large one."""
    (small, small_seconds), (large, large_seconds) = sorted(
        (int(size), seconds) for size, seconds in all_reduce.items()
    )
    slope = max(large_seconds - small_seconds, 0.0) / (large - small)
    beta = slope / share_sent("all_reduce", devices)
    alpha = max(small_seconds - slope * small, 0.0) / rounds("all_reduce", devices)
    return Link("host", alpha, beta)
