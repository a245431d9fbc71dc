import os
import subprocess
import sys
import time

import pytest

from automap_launch.tracking import feed as feed_module
from automap_launch.tracking.events import CompileEvent, StepEvent, decode
from automap_launch.tracking.feed import VARIABLE, Feed


def test_without_the_variable_nothing_happens() -> None:
    feed = Feed.from_environment({})
    assert not feed.active
    feed.send(CompileEvent(time=0.0, seconds=1.0))
    feed.close()


def test_events_arrive_as_lines_and_the_variable_is_taken_out() -> None:
    reader, writer = os.pipe()
    environ = {VARIABLE: str(writer), "HOME": "/"}
    feed = Feed.from_environment(environ)
    assert environ == {"HOME": "/"}
    feed.send(CompileEvent(time=0.0, seconds=1.0, signature="a"))
    feed.send(CompileEvent(time=0.0, seconds=2.0, signature="b"))
    feed.close()
    with os.fdopen(reader) as lines:
        assert [decode(line)["signature"] for line in lines] == ["a", "b"]


@pytest.mark.parametrize("text", ["x", "-1", "100000"])
def test_a_variable_that_names_no_descriptor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        Feed.from_environment({VARIABLE: text})


def test_processes_of_the_script_do_not_inherit_the_pipe() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    feed = Feed(writer)
    child = [sys.executable, "-c", f"import os; os.fstat({writer})"]
    assert subprocess.run(child, close_fds=False, check=False, capture_output=True).returncode != 0
    feed.close()
    os.close(reader)


def test_a_reader_that_is_gone_ends_the_feed_silently() -> None:
    reader, writer = os.pipe()
    feed = Feed(writer)
    os.close(reader)
    feed.send(CompileEvent(time=0.0, seconds=1.0))
    assert not feed.active
    feed.send(CompileEvent(time=0.0, seconds=1.0))
    feed.close()


def test_a_reader_that_stalls_costs_events_but_never_half_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_PATIENCE_SECONDS", 0.2)
    reader, writer = os.pipe()
    feed = Feed(writer)
    # Far more than the 64 KiB that a pipe holds, in lines too long to be written in one piece.
    sent, size = 100, 9000
    begun = time.monotonic()
    for step in range(sent):
        feed.send(StepEvent(step=step, time=0.0, seconds=0.1, outputs={"x" * size: 1.0}))
    # The first full write waits; the others do not, for the reader is known to be stalled.
    assert time.monotonic() - begun < 1.0
    assert feed.dropped > 0
    held = os.read(reader, 1 << 20)  # the reader comes back
    feed.send(StepEvent(step=sent, time=0.0, seconds=0.1))
    feed.close()
    with os.fdopen(reader, "rb") as rest:
        lines = (held + rest.read()).splitlines()
    steps = [decode(line)["step"] for line in lines]
    assert steps == sorted(steps)
    assert steps[-1] == sent
    assert len(steps) == sent + 1 - feed.dropped
