"""`Meter`: measures training from inside rank 0 without ever making it wait.

`step` only puts the scalar outputs of a step just dispatched into a queue. A thread of the meter's own waits for each
step in turn, outside the interpreter lock, notes the time at which it is complete, and reads the values then. So a
value is never fetched before it exists, which would stop the script from dispatching ahead, and step time is the
distance between completions. The time between two *dispatches* would say how fast work is queued, not done.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from automap_launch.tracking.events import CompileEvent, EndEvent, StepEvent
from automap_launch.tracking.feed import Feed


class Scalar(Protocol):
    """What the meter asks of an array with one element; a `jax.Array` is one."""

    def copy_to_host_async(self) -> None: ...
    def block_until_ready(self) -> object: ...
    def __float__(self) -> float: ...


@dataclass(frozen=True)
class _Dispatched:
    """A step whose values may not exist yet."""

    step: int
    time: float
    outputs: dict[str, Scalar]
    markers: tuple[Scalar, ...]
    examples: int | None
    tokens: int | None
    warmup: bool


class Meter:
    """Reports every step of this process to `feed`.

    Args:
      feed: where to; with one that does nothing (any rank but 0) the meter does nothing either.
      examples: rows of the global batch, for steps that do not say otherwise.
      tokens: likewise, batch x sequence of an integer input.
    """

    def __init__(self, feed: Feed, examples: int | None = None, tokens: int | None = None) -> None:
        self._feed = feed
        self._examples = examples
        self._tokens = tokens
        self._steps = 0
        self._warmup = True  # of the step to come
        self._unreadable: set[str] = set()
        self._completed = time.perf_counter()  # when the latest step was seen complete
        self._queue: queue.SimpleQueue[_Dispatched | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def compiled(self, seconds: float, signature: str = "") -> None:
        """Tells that the step was just compiled: the next step's time is no measure of throughput."""
        self._warmup = True
        if self._steps == 0:  # else the first step would have taken since the start of the process
            self._completed = time.perf_counter() - seconds
        self._feed.send(CompileEvent(time.time(), seconds, signature))

    def step(
        self,
        outputs: Mapping[str, Scalar],
        *,
        examples: int | None = None,
        tokens: int | None = None,
        markers: Sequence[Scalar] = (),
    ) -> None:
        """Takes note of a step that was just dispatched. Costs some microseconds, whatever the step's state.

        Args:
          outputs: scalar outputs by path.
          examples, tokens: of this step, where they differ from what the meter was made with.
          markers: further arrays of the step to wait for, for a step without scalar outputs. They are kept alive
            until it is complete, so they should be small, and not donated to the next step.
        """
        if not self._feed.active:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="automap-meter", daemon=True)
            self._thread.start()
        self._steps += 1
        self._queue.put(
            _Dispatched(
                step=self._steps,
                time=time.perf_counter(),
                outputs=dict(outputs),
                markers=tuple(markers),
                examples=self._examples if examples is None else examples,
                tokens=self._tokens if tokens is None else tokens,
                warmup=self._warmup,
            )
        )
        self._warmup = False

    def close(self, timeout: float = 30.0) -> bool:
        """Reports the steps still in flight and the end, then closes the feed.

        Call it before the interpreter shuts down. False: some steps were not complete after `timeout` seconds (a
        lost peer in a collective); they go unreported.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._feed.close()
                return False
            self._thread = None
        self._feed.send(EndEvent(time.time(), self._steps, self._feed.dropped))
        self._feed.close()
        return True

    def _watch(self) -> None:
        while (dispatched := self._queue.get()) is not None:
            self._report(dispatched)

    def _report(self, dispatched: _Dispatched) -> None:
        arrays = (*dispatched.outputs.values(), *dispatched.markers)
        # Without anything to wait for, the dispatch is the only time there is. Devices bound how far it runs ahead.
        now = dispatched.time if not _wait(arrays) else time.perf_counter()
        now = max(now, self._completed)
        seconds, self._completed = now - self._completed, now
        outputs = {}
        for path, value in dispatched.outputs.items():
            if path not in self._unreadable:
                try:
                    outputs[path] = float(value)
                except TypeError:  # a complex number, a PRNG key: it never will be a float
                    self._unreadable.add(path)
                except RuntimeError:  # donated to a later call, or its step failed: the script will meet the error
                    continue
        self._feed.send(
            StepEvent(
                step=dispatched.step,
                time=time.time() - (time.perf_counter() - now),
                seconds=seconds,
                examples=dispatched.examples,
                tokens=dispatched.tokens,
                outputs=outputs,
                warmup=dispatched.warmup,
            )
        )


def _wait(arrays: Sequence[Scalar]) -> bool:
    """Waits until all that can still be waited for is there; False when none could be."""
    alive = []
    for array in arrays:
        try:
            array.copy_to_host_async()
        except (RuntimeError, TypeError):  # donated meanwhile; or a PRNG key, which has no value on the host
            continue
        alive.append(array)
    waited = False
    for array in alive:
        try:
            array.block_until_ready()
        except RuntimeError:
            continue
        waited = True
    return waited
