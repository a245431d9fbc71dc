import itertools
import json
import os
import statistics
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from automap_launch.tracking.events import CompileEvent, EndEvent, Event, StepEvent
from automap_launch.tracking.feed import Feed
from automap_launch.tracking.meter import Meter


class FakeArray:
    """A scalar that exists once `finish` was called; counts what is asked of it before."""

    def __init__(self, value: float) -> None:
        self._value = value
        self._there = threading.Event()
        self.reads_while_not_ready = 0

    def finish(self) -> None:
        self._there.set()

    def is_ready(self) -> bool:
        return self._there.is_set()

    def copy_to_host_async(self) -> None:
        pass

    def block_until_ready(self) -> object:
        self._there.wait(20)
        return self

    def __float__(self) -> float:
        self.reads_while_not_ready += not self.is_ready()
        return self._value


class DeletedArray(FakeArray):
    """Donated to a later call before anyone looked at it."""

    def copy_to_host_async(self) -> None:
        raise RuntimeError("Array has been deleted with shape=float32[].")

    def __float__(self) -> float:
        raise RuntimeError("Array has been deleted with shape=float32[].")


class KeyArray(FakeArray):
    """A scalar that is no number, such as a PRNG key."""

    def __float__(self) -> float:
        raise TypeError("float() argument must be a string or a real number")


class RecordingFeed(Feed):
    """Keeps the events in memory."""

    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[Event] = []
        self.arrived = threading.Condition()

    @property
    def active(self) -> bool:
        return True

    def send(self, event: Event) -> None:
        with self.arrived:
            self.events.append(event)
            self.arrived.notify_all()

    @property
    def steps(self) -> list[StepEvent]:
        return [e for e in self.events if isinstance(e, StepEvent)]

    def wait_for_steps(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.steps) >= count, timeout=20), f"{len(self.steps)} of {count}"


def ready(value: float) -> FakeArray:
    array = FakeArray(value)
    array.finish()
    return array


def test_a_step_neither_waits_nor_reads_what_is_not_there() -> None:
    feed = RecordingFeed()
    meter = Meter(feed, examples=8)
    arrays = [FakeArray(float(i)) for i in range(50)]
    begun = time.perf_counter()
    for array in arrays:
        meter.step({"loss": array})
    assert time.perf_counter() - begun < 1.0  # no array exists, and no one was waited for
    assert feed.steps == []
    for array in arrays:
        array.finish()
    assert meter.close(timeout=20)
    assert [a.reads_while_not_ready for a in arrays] == [0] * 50
    assert [(e.step, e.outputs) for e in feed.steps] == [(i + 1, {"loss": float(i)}) for i in range(50)]


def test_seconds_are_between_completions_not_dispatches() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    arrays = [FakeArray(0.0) for _ in range(6)]
    for array in arrays:  # all dispatched at once
        meter.step({"loss": array})
    completed = []
    for array in arrays:
        time.sleep(0.1)
        completed.append(time.perf_counter())
        array.finish()
    assert meter.close(timeout=20)
    seconds = [e.seconds for e in feed.steps]
    distances = [later - earlier for earlier, later in itertools.pairwise(completed)]
    assert statistics.median(seconds[1:]) == pytest.approx(statistics.median(distances), abs=0.03)
    assert sum(seconds[1:]) == pytest.approx(feed.steps[-1].time - feed.steps[0].time, abs=0.01)


def test_only_steps_that_follow_a_compilation_are_warmup() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    meter.compiled(1.5, "f32[8]")
    for i in range(4):
        if i == 2:
            meter.compiled(0.5, "f32[3]")
        meter.step({"loss": ready(0.0)})
    assert meter.close(timeout=20)
    assert [e.warmup for e in feed.steps] == [True, False, True, False]
    assert feed.steps[0].seconds >= 1.5  # its own compilation, and nothing of what came before
    assert feed.steps[1].seconds < 1.5
    compilations = [(e.seconds, e.signature) for e in feed.events if isinstance(e, CompileEvent)]
    assert compilations == [(1.5, "f32[8]"), (0.5, "f32[3]")]


def test_the_first_step_is_warmup_even_if_nobody_said_so() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    meter.step({})
    meter.step({})
    assert meter.close(timeout=20)
    assert [e.warmup for e in feed.steps] == [True, False]


def test_a_smaller_last_batch_says_so() -> None:
    feed = RecordingFeed()
    meter = Meter(feed, examples=8, tokens=64)
    meter.step({"loss": ready(0.0)})
    meter.step({"loss": ready(0.0)}, examples=3, tokens=24)
    assert meter.close(timeout=20)
    assert [(e.examples, e.tokens) for e in feed.steps] == [(8, 64), (3, 24)]


def test_a_donated_output_is_left_out_and_the_rest_still_timed() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    loss = FakeArray(2.0)
    meter.step({"count": DeletedArray(1.0), "loss": loss})
    time.sleep(0.05)
    assert feed.steps == []  # the loss is still waited for
    loss.finish()
    assert meter.close(timeout=20)
    assert [e.outputs for e in feed.steps] == [{"loss": 2.0}]


def test_an_output_that_is_no_number_is_left_out() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    for _ in range(2):
        key = KeyArray(0.0)
        key.finish()
        meter.step({"rng": key, "loss": ready(1.0)})
    assert meter.close(timeout=20)
    assert [e.outputs for e in feed.steps] == [{"loss": 1.0}] * 2


def test_a_marker_is_waited_for_where_there_is_no_output() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    marker = FakeArray(0.0)
    meter.step({}, markers=[marker])
    time.sleep(0.05)
    assert feed.steps == []
    marker.finish()
    feed.wait_for_steps(1)
    assert meter.close(timeout=20)


def test_closing_reports_what_is_in_flight_and_then_the_end() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    array = FakeArray(1.0)
    meter.step({"loss": array})
    threading.Timer(0.1, array.finish).start()
    assert meter.close(timeout=20)
    assert [type(e) for e in feed.events] == [StepEvent, EndEvent]
    assert feed.events[-1] == EndEvent(time=feed.events[-1].time, steps=1, dropped=0)


def test_closing_gives_up_on_a_step_that_never_completes() -> None:
    feed = RecordingFeed()
    meter = Meter(feed)
    array = FakeArray(1.0)
    meter.step({"loss": array})
    assert not meter.close(timeout=0.1)
    array.finish()  # lets the thread go


def test_on_other_ranks_nothing_runs() -> None:
    before = threading.active_count()
    meter = Meter(Feed(None))
    array = FakeArray(1.0)
    meter.step({"loss": array})
    assert threading.active_count() == before
    assert meter.close()


def test_real_arrays_of_eight_devices() -> None:
    """A jitted step over 8 devices, dispatched ahead: true values, honest times, donated state."""
    script = """
        import os, sys, time
        import jax, jax.numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec
        from automap_launch.tracking.feed import Feed
        from automap_launch.tracking.meter import Meter

        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        sharded = NamedSharding(mesh, PartitionSpec("data"))
        x = jax.device_put(jnp.ones((256, 256)), sharded)

        def step(state, x):
            w = state["w"]
            for _ in range(10):
                w = jnp.tanh(x @ w) * 0.5
            state = {"w": w, "count": state["count"] + 1}
            return state, {"loss": state["count"] * 2.0, "bad": jnp.float32(jnp.nan), "rng": jax.random.key(0)}

        step = jax.jit(step, donate_argnums=0)
        state = {"w": jnp.eye(256), "count": jnp.int32(0)}
        meter = Meter(Feed.from_environment(), examples=256)
        begun = time.perf_counter()
        for _ in range(30):
            state, out = step(state, x)
            meter.step({**out, "count": state["count"]})
        jax.block_until_ready(state)
        elapsed = time.perf_counter() - begun
        assert meter.close()
        print(elapsed)
    """
    reader, writer = os.pipe()
    environment = {**os.environ, "AUTOMAP_FEED_FD": str(writer), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(
        command, env=environment, pass_fds=[writer], capture_output=True, text=True, timeout=120, check=False
    )
    os.close(writer)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    with os.fdopen(reader) as lines:
        events = [json.loads(line) for line in lines]
    steps = [e for e in events if e["event"] == "step"]
    assert events[-1]["event"] == "end"
    assert [s["step"] for s in steps] == list(range(1, 31))
    assert [s["outputs"]["loss"] for s in steps] == [2.0 * s["step"] for s in steps]
    assert {s["outputs"]["bad"] for s in steps} == {"NaN"}
    assert all("rng" not in s["outputs"] for s in steps)
    assert all(s["outputs"].get("count", s["step"]) == s["step"] for s in steps)  # true, or donated and left out
    assert sum(s["seconds"] for s in steps) == pytest.approx(float(result.stdout), rel=0.1)
