"""Where a worker's output goes: its log file, and the terminal for rank 0."""

from __future__ import annotations

import codecs
import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

# XLA's collectives on CPU greet each of their peers on stdout. The logs keep it; on the terminal it is noise.
_NOISE = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]*\n")
_NOISE_BEGINS = "[Gloo] Rank "
_CHUNKS_AHEAD = 64  # of output that may wait for a slow terminal before the worker has to wait, too


class RankLog:
    """A log file of raw bytes. A full disk costs output, with one message; it does not stop the run."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._lost = 0
        self._said = False
        self._append(b"")  # a worker that prints nothing has a log, too

    def write(self, data: bytes) -> None:
        if self._lost:
            note = f"\n[automap-launch: {self._lost} bytes of output lost here]\n".encode()
            if not self._append(note):
                self._lost += len(data)
                return
            self._lost = 0
        if not self._append(data):
            self._lost += len(data)

    def _append(self, data: bytes) -> bool:
        try:
            # Reopened for each chunk: a removed folder or a file moved by log rotation heals by itself.
            with open(self._path, "ab", buffering=0) as file:
                while data:
                    data = data[file.write(data) or 0 :]
        except OSError as error:
            if not self._said:
                self._said = True
                self._say(f"cannot write {self._path}: {error.strerror}; the run goes on without this output")
            return False
        return True


class TerminalWriter:
    """Writes workers' output and our own messages to the terminal, from one thread.

    A terminal that takes no output (a paused pager) holds up the worker's output, as it would without us, but never
    the supervisor: Ctrl-C and time-outs work on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._queue: queue.SimpleQueue[bytes | str | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_CHUNKS_AHEAD)
        self._at_line_start = True
        self._held = ""  # the beginning of a line that may turn out to be noise
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    def output(self, data: bytes) -> None:
        """Passes on a worker's output; waits while the terminal is far behind."""
        self._room.acquire()
        self._queue.put(data)

    def say(self, text: str) -> None:
        """Writes a message of ours on lines of its own. Never waits."""
        self._queue.put("".join(f"automap-launch: {line}\n" for line in text.splitlines()))

    def show(self, text: str) -> None:
        """Writes a text as it is, such as a traceback, on lines of its own. Never waits."""
        self._queue.put(text.rstrip("\n") + "\n" if text else "")

    def close(self, timeout: float) -> None:
        """Writes what is waiting, for at most `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, bytes):
                self._write(self._without_noise(self._decoder.decode(item)))
                self._room.release()
            else:
                self._write(item if self._at_line_start or not item else "\n" + item)

        self._write(self._held)

    def _without_noise(self, text: str) -> str:
        text = _NOISE.sub("", self._held + text)
        tail = text.rpartition("\n")[2]
        self._held = tail if tail.startswith(_NOISE_BEGINS) else ""
        return text[: len(text) - len(self._held)]

    def _write(self, text: str) -> None:
        if self._broken or not text:
            return
        self._at_line_start = text.endswith(("\n", "\r"))
        try:
            self._stream.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))
            self._stream.flush()
        except (OSError, ValueError):  # closed pipe, lost terminal, closed file: the logs still have everything
            self._broken = True
