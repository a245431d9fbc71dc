"""Messages between stages of several processes, through XLA's collectives. Works on CPU (gloo).

What makes it free of deadlocks, and of mixed-up messages:

- Each shard goes through a `ppermute` on a mesh of its two devices. With one device a process XLA:CPU runs such a
  program in the calling thread, outside of its order of collectives; a `ppermute` over the devices of both stages
  blocks for ever when messages cross.
- One thread for each pair of processes in each direction: such a program holds its thread until the data is through,
  and gloo matches messages of one direction by their order alone. Both sides run the same programs in the same order.
- The sender waits in its thread until the values are computed: as a program in XLA's own queue the transfer would
  hold one of the threads that compute them.
- Connections are made before the first step, in one order, by all processes.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.runtime.channel import Message
from automap_launch.runtime.jax_internals import evaluating, jit
from automap_launch.runtime.lanes import Lane, Pair, lanes_of
from automap_launch.runtime.placement import reshard
from automap_launch.runtime.precision import wide_types
from automap_launch.runtime.schedules import Task

_LANE = "lane"
_LOOK_SECONDS = 1.0  # between looks at whether another thread has failed
_WIDE = 8  # bytes of an item: types that JAX narrows in a thread where 64-bit types are off

Shards = dict[tuple[int, Any], jax.Array]  # by value's position and device


class ProcessChannel:
    """Between stages on the devices of several processes.

    Args:
      messages: of a step, in the order in which their senders hand them over; the same on all processes.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._own = jax.process_index()
        self._lanes = {message.task: lanes_of(message) for message in messages}
        self._messages = [m for m in messages if any(self._own in pair for pair in self._lanes[m.task])]
        self._receiving: dict[Task, list[Future[Shards]]] = {}
        self._sending: list[Future[Shards]] = []
        self._here: dict[Task, Shards] = {}
        self._threads = {pair: _thread(pair) for pair in self._pairs()}
        self._connect()

    def begin(self) -> None:
        """Every message that comes from elsewhere is waited for from now on, each in its turn."""
        self.settle()
        self._receiving = {}
        for message in self._messages:
            self._receiving[message.task] = [
                self._threads[pair].submit(functools.partial(_receive, message, lanes))
                for pair, lanes in self._lanes[message.task].items()
                if pair[1] == self._own != pair[0]
            ]

    def send(self, message: Message, values: Sequence[jax.Array]) -> None:
        arrays = [
            v if v.sharding.is_equivalent_to(s, v.ndim) else reshard(s)(v)
            for v, s in zip(values, message.sources, strict=True)
        ]
        shards = {
            (position, shard.device): shard.data
            for position, array in enumerate(arrays)
            for shard in array.addressable_shards
        }
        for pair, lanes in self._lanes[message.task].items():
            if pair == (self._own, self._own):
                moved = jax.device_put([shards[n.value, n.source] for n in lanes], [n.target for n in lanes])
                self._here[message.task] = _with_copies(lanes, moved)
            elif pair[0] == self._own:
                self._sending.append(self._threads[pair].submit(functools.partial(_send, lanes, shards)))

    def receive(self, message: Message) -> list[jax.Array]:
        shards = self._here.pop(message.task, {})
        for future in self._receiving.pop(message.task, ()):
            shards.update(_outcome(future))
        return [
            jax.make_array_from_single_device_arrays(
                kind.shape,
                target,
                [shards[position, device] for device in target.addressable_devices],
                dtype=np.dtype(kind.dtype),
            )
            for position, (kind, target) in enumerate(zip(message.kinds, message.targets, strict=True))
        ]

    def settle(self) -> None:
        for future in self._sending:
            _outcome(future)
        self._sending.clear()

    def _pairs(self) -> list[Pair]:
        pairs = {pair for lanes in self._lanes.values() for pair in lanes if pair[0] != pair[1] and self._own in pair}
        return sorted(pairs)

    def _connect(self) -> None:
        """Opens the connection of every two devices that will talk, one after the other."""
        ends = {
            (lane.source, lane.target)
            for lanes in self._lanes.values()
            for pair, of_pair in lanes.items()
            if pair[0] != pair[1]
            for lane in of_pair
        }
        for source, target in sorted(ends, key=lambda pair: (pair[0].id, pair[1].id)):
            pair = source.process_index, target.process_index
            if self._own not in pair:
                continue
            lane = Lane(0, (1,), source, target, ())
            made = source if pair[0] == self._own else target
            greeting = {(0, made): _zeros((1,), np.dtype(np.int32), made)}
            self._threads[pair].submit(functools.partial(_transfer, [lane], greeting)).result()


# Failures of this process's threads. The peers' order is lost then: nothing more is sent or received.
_failures: list[BaseException] = []


class _Thread:
    """Runs what is submitted, one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Shards], Future[Shards]]] = queue.SimpleQueue()
        # A daemon: a thread that waits for a lost peer must not keep the process.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], Shards]) -> Future[Shards]:
        future: Future[Shards] = Future()
        self._jobs.put((job, future))
        return future

    def _run(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                if _failures:
                    raise _failures[0]
                with evaluating():  # the thread may have begun while the script's state was being described
                    future.set_result(job())
            except BaseException as error:
                _failures.append(error)
                future.set_exception(error)


def _outcome(future: Future[Shards]) -> Shards:
    """What a job made, once it is done; raises as soon as any job of this process has failed."""
    while True:
        try:
            return future.result(timeout=_LOOK_SECONDS)
        except TimeoutError:
            if _failures:
                raise _failures[0] from None


@functools.cache
def _thread(pair: Pair) -> _Thread:
    """One a direction for the whole process, whatever the number of signatures of the step."""
    return _Thread(f"from process {pair[0]} to {pair[1]}")


def _send(lanes: Sequence[Lane], shards: Shards) -> Shards:
    mine = {(lane.value, lane.source): shards[lane.value, lane.source] for lane in lanes}
    jax.block_until_ready(list(mine.values()))
    jax.block_until_ready(list(_transfer(lanes, mine).values()))
    return {}


def _receive(message: Message, lanes: Sequence[Lane]) -> Shards:
    empty = {
        (lane.value, lane.target): _zeros(lane.shape, np.dtype(message.kinds[lane.value].dtype), lane.target)
        for lane in lanes
    }
    arrived = _transfer(lanes, empty)
    return _with_copies(lanes, [arrived[lane.value, lane.target] for lane in lanes])


def _transfer(lanes: Iterable[Lane], shards: Shards) -> Shards:
    """This process's shards of the lanes after the transfer: at the target, what the source had."""
    out: Shards = {}
    ordered = sorted(lanes, key=lambda n: (n.source.id, n.target.id))
    for (source, target), group in itertools.groupby(ordered, key=lambda n: (n.source, n.target)):
        together = list(group)
        mesh = _mesh(source, target)
        sharding = NamedSharding(mesh, PartitionSpec(_LANE))
        own = source if source.process_index == jax.process_index() else target
        inputs = []
        for lane in together:
            local = shards[lane.value, own]
            local = local.reshape(1) if not lane.shape else local
            shape = (2 * local.shape[0], *local.shape[1:])
            inputs.append(jax.make_array_from_single_device_arrays(shape, sharding, [local]))
        with wide_types(any(array.dtype.itemsize >= _WIDE for array in inputs)):
            results = _permute(mesh)(inputs)
        for lane, result in zip(together, results, strict=True):
            data = result.addressable_shards[0].data
            out[lane.value, own] = data if lane.shape else data.reshape(())
    return out


def _with_copies(lanes: Sequence[Lane], arrived: Sequence[jax.Array]) -> Shards:
    shards: Shards = {}
    for lane, array in zip(lanes, arrived, strict=True):
        shards[lane.value, lane.target] = array
        for device in lane.copies:
            shards[lane.value, device] = jax.device_put(array, device)
    return shards


@functools.lru_cache(maxsize=1024)
def _mesh(source: Any, target: Any) -> Mesh:
    return Mesh(np.array([source, target]), (_LANE,))


@functools.lru_cache(maxsize=1024)
def _permute(mesh: Mesh) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """`[arrays] -> [arrays]`, sharded over two devices: the first one's shards go to the second."""
    spec = PartitionSpec(_LANE)

    def run(arrays: list[jax.Array]) -> list[jax.Array]:
        return [lax.ppermute(array, _LANE, [(0, 1)]) for array in arrays]

    mapped = jax.shard_map(run, mesh=mesh, in_specs=(spec,), out_specs=spec, check_vma=False)
    permute: Callable[[list[jax.Array]], list[jax.Array]] = jit(mapped, out_shardings=NamedSharding(mesh, spec))
    return permute


@functools.lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...], dtype: Any, device: Any) -> jax.Array:
    """What a receiver gives in, only for its shape."""
    return jax.device_put(np.zeros(shape, dtype), device)
