"""One of four processes with two devices that send each other messages: `channel_traffic.py RANK PORT`.

Prints how many messages it took, each of which had what its sender made of it.
"""

from __future__ import annotations

import sys
import time
import zlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.program.program import Value
from automap_launch.runtime.channel import Message
from automap_launch.runtime.jax_internals import on_device_mismatch
from automap_launch.runtime.mesh import make_mesh
from automap_launch.runtime.process_channel import ProcessChannel
from automap_launch.runtime.schedules import Task, chain, compute_order, merged, with_messages

PROCESSES, DEVICES, STEPS, MICRO_BATCHES = 4, 2, 4, 8
# Forward messages carry all of these, backward ones some: neighbours in a queue differ in size and in number.
KINDS = (
    (Value((8, 6), "float32"), PartitionSpec("data")),
    (Value((4, 8), "bfloat16"), PartitionSpec(None, "data")),
    (Value((), "int32"), PartitionSpec()),
    (Value((5,), "bool"), PartitionSpec()),
)


def content(task: Task, step: int, position: int, kind: Value) -> np.ndarray:
    """What a message carries: a number made of all that names it."""
    number = zlib.crc32(f"{task} {step} {position}".encode()) % 251
    return np.full(kind.shape, number % 2 if kind.dtype == "bool" else number).astype(np.dtype(kind.dtype))


def stages_of(layout: str) -> list[list[Any]]:
    devices = jax.devices()
    return {
        "stage in a process": [devices[2 * p : 2 * p + 2] for p in range(4)],
        "stage over two processes": [devices[:4], devices[4:]],
        # Lanes within a process, and lanes to others, in the same message.
        "stages across all processes": [devices[0::2], [devices[i] for i in (1, 5, 3, 7)]],
    }[layout]


def exchange(layout: str, schedule: str) -> int:
    """Runs steps whose tasks do nothing but send and receive. Returns the number of messages received here."""
    stages = stages_of(layout)
    meshes = [make_mesh({"data": len(devices)}, devices) for devices in stages]
    edges = chain(len(stages))
    order = with_messages(compute_order(schedule, len(stages), MICRO_BATCHES), edges)
    tasks = merged(order, edges, lambda task: {"forward": 1.0, "backward": 2.0}.get(task.kind, 0.0))

    def message(task: Task) -> Message:
        kinds = KINDS[: 4 if task.of == "forward" else 1 + (task.micro_batch or 0) % 3]
        placed = (
            tuple(NamedSharding(meshes[stage], spec) for _, spec in kinds) for stage in (task.stage, task.peer or 0)
        )
        return Message(task, tuple(kind for kind, _ in kinds), *placed)

    messages = {task: message(task) for task in tasks if task.kind == "send"}
    channel = ProcessChannel(list(messages.values()))
    own = {s for s, devices in enumerate(stages) if any(d.process_index == jax.process_index() for d in devices)}
    taken = 0
    pace = np.random.default_rng(jax.process_index())
    for step in range(STEPS):
        channel.begin()
        for task in (task for task in tasks if task.stage in own):
            if task.kind == "send":
                out = messages[task]
                values = [content(task, step, i, kind) for i, kind in enumerate(out.kinds)]
                arrays = [
                    jax.make_array_from_callback(v.shape, s, lambda index, v=v: v[index])
                    for v, s in zip(values, out.sources, strict=True)
                ]
                channel.send(out, arrays)
            elif task.kind == "receive":
                sent = Task("send", task.peer or 0, task.micro_batch, task.stage, task.of)
                for i, (array, kind) in enumerate(
                    zip(channel.receive(messages[sent]), messages[sent].kinds, strict=True)
                ):
                    assert array.sharding == messages[sent].targets[i]
                    for shard in array.addressable_shards:
                        wanted = content(sent, step, i, kind)[shard.index]
                        assert np.array_equal(np.asarray(shard.data), wanted), (layout, schedule, step, sent, i)
                taken += 1
            elif pace.random() < 0.1:
                time.sleep(0.002)
        channel.settle()
    return taken


def meet_elsewhere() -> None:
    """Eager code on an array of each process's own and one that lies on a single device, on most processes elsewhere.
    The second time JAX's cache of calls would be asked."""
    take_back = on_device_mismatch(lambda arrays: arrays)
    for device in jax.devices():
        mesh = Mesh(np.array([device]), ("data",))
        own = [jax.device_put(np.float32(3), device)] if device.process_index == jax.process_index() else []
        there = jax.make_array_from_single_device_arrays(
            (), NamedSharding(mesh, PartitionSpec()), own, dtype=np.dtype(np.float32)
        )
        for _ in range(3):
            total = jax.numpy.float32(1) + there
            assert total.sharding.device_set == {device}
            assert [float(shard.data) for shard in total.addressable_shards] == [4.0] * len(own)
    take_back()


def main(rank: int, port: int) -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, rank)
    taken = sum(
        exchange(layout, schedule)
        for layout, schedule in (
            ("stage in a process", "1f1b"),
            ("stage in a process", "gpipe"),
            ("stage over two processes", "1f1b"),
            ("stages across all processes", "1f1b"),
        )
    )
    meet_elsewhere()
    print("taken", taken, flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
