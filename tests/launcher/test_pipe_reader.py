from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator

import pytest

from automap_launch.launcher.pipe_reader import PipeReader
from tests.launcher.harness import eventually

_MEBIBYTE = 1 << 20


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds a mebibyte, and whose write end stays open."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _MEBIBYTE)
    yield read_end, write_end
    os.close(write_end)


def test_finish_reads_all_that_was_written_but_does_not_wait_for_the_writer(pipe: tuple[int, int]) -> None:
    got: list[bytes] = []
    may_read = threading.Event()

    def sink(data: bytes) -> None:
        may_read.wait()
        got.append(data)

    reader = PipeReader(pipe[0], sink, "test")
    os.write(pipe[1], b"x" * _MEBIBYTE)
    threading.Timer(0.2, may_read.set).start()
    assert reader.finish(10)
    assert len(b"".join(got)) == _MEBIBYTE


def test_a_sink_that_takes_nothing_is_given_up(pipe: tuple[int, int]) -> None:
    got: list[bytes] = []
    may_read = threading.Event()

    def sink(data: bytes) -> None:
        got.append(data)
        may_read.wait()

    reader = PipeReader(pipe[0], sink, "stuck reader")
    os.write(pipe[1], b"x" * _MEBIBYTE)
    assert not reader.finish(0.1)
    may_read.set()
    eventually(lambda: "stuck reader" not in [t.name for t in threading.enumerate()], "its thread ends all the same")
    assert len(got) == 1, "nothing comes after it was given up"
