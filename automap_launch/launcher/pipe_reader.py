"""A thread that reads a pipe to its end."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable

_CHUNK = 1 << 16


class PipeReader:
    """Hands the bytes of a pipe, as they come, to `sink`, until every writer has closed its end.

    A process that left its group may hold the other end for ever; `finish` does not wait for it.
    """

    def __init__(self, descriptor: int, sink: Callable[[bytes], None], name: str) -> None:
        """Takes over `descriptor`."""
        self._descriptor = descriptor
        self._sink = sink
        self._wake_read, self._wake_write = os.pipe()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def finish(self, timeout: float) -> bool:
        """Reads what has been written so far, then ends. False when that took longer than `timeout` seconds."""
        os.write(self._wake_write, b"x")
        self._thread.join(timeout)
        self._abandoned = self._thread.is_alive()
        if not self._abandoned:  # else its thread still uses them
            os.close(self._wake_read)
            os.close(self._wake_write)
        return not self._abandoned

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._abandoned:
                ready = {key.fd for key, _ in selector.select()}
                if self._descriptor in ready:
                    data = os.read(self._descriptor, _CHUNK)
                    if not data:
                        break
                    self._sink(data)
                else:  # told to finish, and nothing is left to read
                    break
        os.close(self._descriptor)
