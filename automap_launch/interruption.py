"""Signals to the launcher's own process, while it captures and searches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal that ends the launch."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.name = signal.Signals(signum).name
        self.exit_code = 128 + signum


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns the ending signals into `Interrupted` in the main thread; the handlers before are put back at the end."""

    def raise_interrupted(signum: int, _frame: FrameType | None) -> None:
        raise Interrupted(signum)

    before = {number: signal.signal(number, raise_interrupted) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
