"""The choice among several failures."""

from __future__ import annotations

import signal

import pytest

from automap_launch.launcher.failure import FailureRecord
from automap_launch.launcher.root_cause import Ending, exit_code, root_cause

GLOO = "JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:46091"
GLOO_AT_DISPATCH = (
    "ValueError: UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:10400"
)
HEARTBEAT = "JaxRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)"


def died(rank: int, time: float, signum: signal.Signals) -> Ending:
    return Ending(rank, -signum, time)


def said(rank: int, time: float, message: str, code: int = 1, *, kind: str = "script", trace: str = "T") -> Ending:
    record = FailureRecord(rank, f"host{rank}", time, kind, message, code, "train.py", 3, trace)
    return Ending(rank, code, time + 0.1, record)


def cause_of(
    *endings: Ending,
    stopped_at: float | None = 100.0,
    sent: tuple[signal.Signals, ...] = (signal.SIGTERM,),
    suspended: tuple[int, ...] = (),
) -> tuple[int | None, int | None]:
    """Rank and exit code of the root cause."""
    failure = root_cause(endings, stopped_at, sent, suspended, "here")
    assert failure is not None
    return failure.rank, failure.exit_code


def test_no_failure() -> None:
    assert root_cause([Ending(0, 0, 1.0), Ending(1, 0, 2.0)], None, (), (), "here") is None


def test_the_earliest_by_the_workers_own_time() -> None:
    early = Ending(1, 7, 99.0, FailureRecord(1, "h", 10.0, "script", "KeyError: 'x'", 7, traceback="T"))
    assert cause_of(said(0, 11.0, "OSError: disk"), early) == (1, 7)


def test_ranks_that_we_stopped_do_not_count() -> None:
    assert cause_of(died(0, 101.0, signal.SIGTERM), died(1, 99.0, signal.SIGSEGV)) == (1, 139)
    # A script whose handler of SIGTERM ends it with a code of its own.
    assert cause_of(said(0, 101.0, "sys.exit(9)", 9, trace=""), died(1, 99.0, signal.SIGABRT)) == (1, 134)
    assert cause_of(Ending(0, 9, 101.0), died(1, 99.0, signal.SIGABRT)) == (1, 134)


@pytest.mark.parametrize("message", [GLOO, GLOO_AT_DISPATCH, HEARTBEAT])
def test_a_script_error_before_the_runtime_errors_it_causes(message: str) -> None:
    assert cause_of(said(0, 10.0, message), said(1, 10.5, "ValueError: bad", 3)) == (1, 3)


def test_a_kill_before_the_runtime_errors_it_causes() -> None:
    """The kernel tells the neighbours before it tells the parent."""
    assert cause_of(said(0, 10.0, GLOO), died(1, 10.5, signal.SIGKILL)) == (1, 137)
    assert cause_of(said(0, 10.0, GLOO), died(1, 100.5, signal.SIGSEGV)) == (1, 139), "seen after we began to stop"
    assert cause_of(died(0, 10.0, signal.SIGABRT), died(1, 10.5, signal.SIGKILL)) == (1, 137)


def test_our_own_sigkill_is_no_cause() -> None:
    sent = (signal.SIGTERM, signal.SIGKILL)
    assert cause_of(said(0, 10.0, GLOO), died(1, 110.0, signal.SIGKILL), sent=sent) == (0, 1)


def test_a_worker_error_about_the_network_is_a_consequence() -> None:
    late = said(1, 11.0, "RuntimeError: no such device", 1, kind="worker")
    assert cause_of(said(0, 10.0, "RuntimeError: barrier timed out", kind="worker"), late) == (1, 1)


def test_a_script_that_talks_of_connections_is_a_cause() -> None:
    assert cause_of(said(0, 10.0, "ConnectionError: connection refused", 5), said(1, 11.0, "ValueError: x")) == (0, 5)


def test_runtime_errors_alone_are_the_cause() -> None:
    assert cause_of(said(0, 11.0, GLOO), said(1, 10.0, HEARTBEAT, 4)) == (1, 4)


def test_a_rank_that_was_stopped_in_its_last_words_ended_with_its_own_code() -> None:
    stopped = Ending(0, -signal.SIGTERM, 101.0, said(0, 99.5, "the script called sys.exit(3)", 3, trace="").record)
    assert cause_of(stopped, said(1, 99.0, "the script called sys.exit(3)", 3, trace="")) == (0, 3)


def test_a_suspended_rank_explains_runtime_errors_only() -> None:
    assert cause_of(died(0, 10.0, signal.SIGABRT), died(2, 101.0, signal.SIGTERM), suspended=(2,)) == (2, 134)
    assert cause_of(said(0, 10.0, "ValueError: x"), died(2, 101.0, signal.SIGTERM), suspended=(2,)) == (0, 1)


def test_a_failure_that_all_ranks_share_is_rank_0s() -> None:
    assert cause_of(said(0, 10.2, "ValueError: x"), said(1, 10.0, "ValueError: x")) == (0, 1)


def test_a_rank_that_leaves_without_a_word_explains_runtime_errors_only() -> None:
    left = Ending(1, 0, 9.0)
    assert cause_of(said(0, 10.0, GLOO), left) == (1, 1)
    assert cause_of(said(0, 10.0, "KeyError: 'x'"), left) == (0, 1)
    assert cause_of(said(0, 10.0, GLOO), Ending(1, 0, 101.0)) == (0, 1)  # told to stop, it ended well


def test_what_is_told() -> None:
    failure = root_cause([said(1, 1.0, "ValueError: x", 3)], None, (), (), "here")
    assert failure is not None
    assert failure.crash
    assert (failure.kind, failure.host, failure.file, failure.line) == ("script", "host1", "train.py", 3)
    quiet = root_cause([said(1, 1.0, "sys.exit(3)", 3, trace="")], None, (), (), "here")
    assert quiet is not None
    assert not quiet.crash


def test_exit_code() -> None:
    assert [exit_code(c) for c in (0, 3, -2, -9)] == [0, 3, 130, 137]
