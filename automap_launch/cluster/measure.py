"""Measures the devices at hand: `python -m automap_launch.cluster.measure REQUEST.json`, one process a rank.

Runs in processes of its own, so that the one that asks never starts a backend. All devices work at the same time in
every measurement, because virtual devices share cores. Rank 0 writes the answer (`Measured`) to the file that the
request names. It takes some seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.cluster.measure_curves import measure_curves
from automap_launch.cluster.timing import seconds_of_call

_AXIS = "devices"
_CHAIN = 64
# Square matrices' width and the bytes that a device streams through, and all-reduces: large enough to hide what a
# call costs, small enough for many virtual devices in one machine's memory.
_WIDTH = {"cpu": 384, "gpu": 4096, "tpu": 4096}
_STREAM_BYTES = {"cpu": 2**22, "gpu": 2**27, "tpu": 2**27}
_REDUCE_BYTES = {"cpu": 2**22, "gpu": 2**26, "tpu": 2**26}
_SMALL_REDUCE_BYTES = 2**10
_SECONDS_EACH = 0.25


@dataclass(frozen=True)
class Request:
    """What to measure. `platform`: of JAX, or None for its choice. `devices`: of all processes; None: all there are.

    `curves`: by shape and by size as well (`measure_curves.py`), which takes a minute or two.
    """

    platform: str | None
    devices: int | None
    processes: int
    rank: int
    coordinator: str
    answer: str
    curves: bool = False


@dataclass(frozen=True)
class Measured:
    """Rates of one device while all are busy; seconds and bytes.

    `all_reduce`: seconds of an all-reduce over all devices, by bytes a device; empty for a single device.
    `alone_speedup`: matmul rate of a device while the others idle, over its rate while all are busy.
    `curves`: a record of `Curves`; null where they were not asked for.
    """

    platform: str
    kind: str
    devices: int
    memory_bytes: int
    matmul_flops: float
    memory_bandwidth: float
    op_seconds: float
    alone_speedup: float
    all_reduce: dict[str, float]
    curves: dict[str, Any] | None


def measure(request: Request) -> Measured:
    """Measures the devices of this process and of the request's others.

    Raises:
      RuntimeError: JAX finds no such platform, or fewer devices than asked for.
    """
    devices = _find_devices(request)
    kind = devices[0].platform
    mesh = Mesh(np.array(devices), (_AXIS,))
    rate = _matmul_rate(mesh, _WIDTH[kind])
    local = [d for d in devices if d.process_index == request.rank]
    # The other ranks go on to the next measurement and wait there: their devices are idle.
    own = Mesh(np.array(local[:1]), (_AXIS,))
    alone = _matmul_rate(own, _WIDTH[kind]) if request.rank == 0 else rate
    reduce = {}
    if len(devices) > 1:
        reduce = {str(size): _reduce_seconds(mesh, size) for size in (_SMALL_REDUCE_BYTES, _REDUCE_BYTES[kind])}
    op_seconds = _op_seconds(mesh)
    # Above the number of devices it could only be noise: they would share less than the whole machine.
    alone_speedup = min(max(1.0, alone / rate), float(len(devices)))
    return Measured(
        platform=kind,
        kind=devices[0].device_kind,
        devices=len(devices),
        memory_bytes=_memory_bytes(local[0], len(devices)),
        matmul_flops=rate,
        memory_bandwidth=_bandwidth(mesh, _STREAM_BYTES[kind]),
        op_seconds=op_seconds,
        alone_speedup=alone_speedup,
        all_reduce=reduce,
        curves=measure_curves(devices, op_seconds, alone_speedup) if request.curves else None,
    )


def _find_devices(request: Request) -> list[Any]:
    if request.devices is not None:
        # Has no effect on other platforms. Beyond it, virtual CPU devices do not exist.
        jax.config.update("jax_num_cpu_devices", request.devices // request.processes)
    if request.processes > 1:
        own = None
        if request.platform != "cpu" and request.devices is not None:
            each = request.devices // request.processes
            own = list(range(request.rank * each, (request.rank + 1) * each))
        jax.distributed.initialize(request.coordinator, request.processes, request.rank, local_device_ids=own)
    found = list(jax.devices(request.platform))
    wanted = len(found) if request.devices is None else request.devices
    if wanted > len(found):
        raise RuntimeError(f"{wanted} devices were asked for, there are {len(found)} of platform {found[0].platform}")
    return found[:wanted]


def _matmul_rate(mesh: Mesh, width: int) -> float:
    """Floating-point operations a second of each device, all of them multiplying square float32 matrices."""

    def step(x: Any) -> Any:
        return jnp.einsum("nij,njk->nik", x, x) * (1.0 / width)

    seconds = seconds_of_call(_repeated(mesh, step, 4), [_ones(mesh, (width, width))], _SECONDS_EACH)
    return 2.0 * width**3 * 4 / seconds


def _bandwidth(mesh: Mesh, size: int) -> float:
    """Bytes a second that cross each device's memory where new arrays are made of old ones, as an update makes them.

    `size`: of one array of four; what is read was not read just before, and what is written lies elsewhere.
    """
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    arrays = [_ones(mesh, (size // 4,)) for _ in range(4)]

    def update(p: Any, m: Any, v: Any, g: Any) -> tuple[Any, ...]:
        m, v = m * 0.9 + g * 0.1, v * 0.9 + g * g * 0.1
        return p - m * 0.1, m, v

    seconds = seconds_of_call(jax.jit(update, out_shardings=sharding), arrays, _SECONDS_EACH)
    return 7.0 * size / seconds


def _op_seconds(mesh: Mesh) -> float:
    """Seconds of an operation with next to no work: a chain of products and of scalings between them."""

    def step(x: Any) -> Any:
        for _ in range(_CHAIN):
            x = jnp.einsum("nij,njk->nik", x, x) * 0.25
        return x

    seconds = seconds_of_call(_repeated(mesh, step, 2), [_ones(mesh, (4, 4))], _SECONDS_EACH)
    return seconds / (2 * _CHAIN * 2)


def _reduce_seconds(mesh: Mesh, size: int) -> float:
    """Seconds of an all-reduce of `size` bytes a device over all devices."""
    rounds = 4

    def body(x: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, lambda _, y: jax.lax.psum(y, _AXIS) * 0.1, x)

    spec = PartitionSpec(_AXIS)
    reduce = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return seconds_of_call(reduce, [_ones(mesh, (size // 4,))], _SECONDS_EACH) / rounds


def _repeated(mesh: Mesh, step: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    """`step` on every device's own slice, `times` times, in one call."""
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    loop: Callable[[Any], Any] = jax.jit(
        lambda x: jax.lax.fori_loop(0, times, lambda _, y: step(y), x), in_shardings=sharding, out_shardings=sharding
    )
    return loop


def _ones(mesh: Mesh, shape: tuple[int, ...]) -> Any:
    """Ones of `shape` on each device."""
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    return jax.jit(lambda: jnp.ones((mesh.size, *shape), jnp.float32), out_shardings=sharding)()


def _memory_bytes(device: Any, sharers: int) -> int:
    """Bytes that one device may use: an accelerator's own, or its share of the machine's."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total // sharers


def main() -> None:
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        measured = measure(request)
        if request.rank == 0:
            Path(request.answer).write_text(json.dumps(asdict(measured)))
    except Exception as error:
        # At once: an orderly end would wait for the other ranks, which wait for this one.
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
