"""Signals to the launcher, as messages to the supervisor."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SignalReceived:
    """`time` is monotonic, in seconds."""

    signum: signal.Signals
    time: float


class SignalInbox:
    """While entered, each signal of `STOP` and `PASSED_ON` becomes a `SignalReceived` in `inbox`.

    A signal that was ignored when the launcher started stays so (`nohup`, a shell's background jobs). Handlers can
    only be set in the main thread; elsewhere signals keep doing what the program around us decided.
    """

    def __init__(self, inbox: queue.SimpleQueue[Any]) -> None:
        self._inbox = inbox
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalInbox:
        if threading.current_thread() is not threading.main_thread():
            logger.info("not in the main thread: signals are not handled by the launcher")
            return self
        for signum in STOP + PASSED_ON:
            previous = signal.getsignal(signum)
            # None: set by code that is not Python's, and could not be restored.
            if previous is not None and previous is not signal.SIG_IGN:
                self._previous[signum] = previous
                signal.signal(signum, self._receive)
        return self

    def __exit__(self, *_: Any) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)
        self._previous.clear()

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        # SimpleQueue.put may be called from a handler; logging and printing may not: they hold locks.
        self._inbox.put(SignalReceived(signal.Signals(signum), time.monotonic()))
