"""The launcher's end of rank 0's feed: one JSON object a line, one event an object."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

_LONGEST_LINE = 1 << 24

logger = logging.getLogger(__name__)


class EventLines:
    """Cuts bytes into lines and hands each line's object to `on_event`, in order.

    Neither a line that is no JSON object nor an `on_event` that raises ends training: each is reported once by
    `say`, and every time in the log.
    """

    def __init__(self, on_event: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> None:
        self._on_event = on_event
        self._say = say
        self._rest = b""
        self._said: set[str] = set()

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._handle(line)
        if len(self._rest) > _LONGEST_LINE:
            self._handle(self._rest)
            self._rest = b""

    def close(self) -> None:
        """A last line without an end: the worker died in the middle of it."""
        if self._rest:
            self._handle(self._rest)
            self._rest = b""

    def _handle(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            self._report("line", f"an event of rank 0 is no JSON object and was left out: {line[:80]!r}")
            return
        try:
            self._on_event(record)
        except Exception as error:  # whatever fails in tracking must not end training
            logger.exception("an event was lost: %r", record)
            self._report("event", f"an event of rank 0 was lost: {type(error).__name__}: {error}")

    def _report(self, what: str, text: str) -> None:
        logger.warning(text)
        if what not in self._said:
            self._said.add(what)
            self._say(text)
