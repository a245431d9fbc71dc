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


class Interruption:
    """What signals have come.

    A signal raises `Interrupted` at once. Python drops an exception that is raised inside a finalizer or a callback
    of the garbage collector, so long work asks `requested`, and `check` raises it again.
    """

    def __init__(self) -> None:
        self.signum: int | None = None

    @property
    def requested(self) -> bool:
        return self.signum is not None

    def check(self) -> None:
        """Raises `Interrupted` if a signal has come."""
        if self.signum is not None:
            raise Interrupted(self.signum)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turns the ending signals into `Interrupted` in the main thread; the handlers before are put back at the end."""
    interruption = Interruption()

    def raise_interrupted(signum: int, _frame: FrameType | None) -> None:
        interruption.signum = signum
        interruption.check()

    before = {number: signal.signal(number, raise_interrupted) for number in ENDING_SIGNALS}
    try:
        yield interruption
        interruption.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
