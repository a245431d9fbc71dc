"""`Feed`: the worker's end of the pipe to the launcher."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import MutableMapping

from automap_launch.tracking.events import Event, encode

VARIABLE = "AUTOMAP_FEED_FD"

_PATIENCE_SECONDS = 2.0  # a launcher that has not read for this long loses events; training goes on


class Feed:
    """Writes events to a file descriptor. Never raises once made: what happens to the pipe is no fault of training.

    A launcher that stops reading costs events (`dropped` counts them), one that is gone ends the feed.
    """

    def __init__(self, descriptor: int | None) -> None:
        """Takes over `descriptor`; None makes a feed that does nothing."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._stalled = False  # the last write timed out: do not wait again until one gets through
        self._rest = b""  # of a line that was cut in the middle; it goes first, lest the reader sees half a line
        self.dropped = 0
        if descriptor is not None:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Feed:
        """The feed whose descriptor the launcher named in `AUTOMAP_FEED_FD`; one that does nothing when unset.

        The variable is taken out: a process that the script starts must not write to a number that means
        something else there.

        Raises:
          ValueError: the variable is no number, or names no open descriptor.
        """
        text = environ.pop(VARIABLE, None)
        if text is None:
            return cls(None)
        if not text.isdecimal():
            raise ValueError(f"{VARIABLE} is the number of an open file descriptor, got {text!r}")
        try:
            return cls(int(text))
        except OSError as error:
            raise ValueError(f"{VARIABLE}={text} names no open file descriptor: {error.strerror}") from error

    @property
    def active(self) -> bool:
        return self._descriptor is not None

    def send(self, event: Event) -> None:
        """Writes `event`, or drops it when the pipe stays full for some seconds. Safe from any thread."""
        with self._lock:
            if self._descriptor is None:
                return
            held = len(self._rest)
            data = self._rest + encode(event)
            written = self._write(data, 0.0 if self._stalled else _PATIENCE_SECONDS)
            if written is None:
                self._release()
                return
            self._stalled = written < len(data)
            if self._stalled and written <= held:
                self._rest = data[written:held]
                self.dropped += 1
            else:
                self._rest = data[written:]

    def close(self) -> None:
        """Writes what is left of a cut line and closes the descriptor. Later events go nowhere."""
        with self._lock:
            if self._descriptor is not None:
                self._write(self._rest, _PATIENCE_SECONDS)
                self._release()

    def _write(self, data: bytes, patience: float) -> int | None:
        """Bytes written within `patience` seconds; None when nobody reads any more."""
        assert self._descriptor is not None
        deadline = time.monotonic() + patience
        written = 0
        while written < len(data):
            try:
                written += os.write(self._descriptor, data[written:])
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([], [self._descriptor], [], left)[1]:
                    break
            except OSError:  # EPIPE: the launcher is gone; EBADF: the script closed descriptors that are not its own
                return None
        return written

    def _release(self) -> None:
        assert self._descriptor is not None
        with contextlib.suppress(OSError):  # EBADF, as above: there is nothing left to close
            os.close(self._descriptor)
        self._descriptor = None
