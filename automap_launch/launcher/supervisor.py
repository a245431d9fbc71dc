"""`launch`: worker processes on this host, watched until the last one is gone.

The promises are listed for users in docs/failures.md.
"""

from __future__ import annotations

import dataclasses
import queue
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from automap_launch.errors import WorkerError
from automap_launch.launcher.attempt import Attempt, OtherHostFailed, Outcome
from automap_launch.launcher.config import LauncherConfig
from automap_launch.launcher.failure import WorkerFailure
from automap_launch.launcher.guardian import Guardian
from automap_launch.launcher.host_group import HostGroup
from automap_launch.launcher.output import TerminalWriter
from automap_launch.launcher.ports import free_port
from automap_launch.launcher.report import failure_details, failure_report
from automap_launch.launcher.root_cause import first_of
from automap_launch.launcher.signals import PASSED_ON, SignalInbox, SignalReceived
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.run_folder import RunFolder
from automap_launch.units import parse_duration

WORKER_COMMAND = (sys.executable, "-m", "automap_launch.launcher.worker")

_REFUSALS = ("config", "capture", "plan")  # would come again: no restart
_TERMINAL_SECONDS = 5.0  # for a slow terminal to take the last lines


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended.

    Attributes:
      exit_code: for the launcher to leave with: 0, the root cause's, or 128 + n for signal n.
      failure: the root cause; None when all workers ended with 0.
      interrupted: the launcher was told to stop, by Ctrl-C or another signal.
      attempts: how often the workers were started.
      started, ended: seconds since the epoch.
    """

    exit_code: int
    failure: WorkerFailure | None
    interrupted: bool
    attempts: int
    started: float
    ended: float


def launch(
    spec: LaunchSpec,
    config: LauncherConfig,
    folder: RunFolder,
    on_event: Callable[[dict[str, Any]], None],
    terminal: TextIO,
    *,
    group: HostGroup | None = None,
    command: Sequence[str] = WORKER_COMMAND,
) -> LaunchResult:
    """Runs the workers of `spec` until all have ended; starts all anew after a failure, `config.max_restarts` times.

    When it returns, no process of the workers is left, every event was handled, and signal handlers are as before.
    The failure has been reported on `terminal`. Several hosts start, fail and start again together.

    Args:
      spec: `coordinator` and `attempt` are filled in here.
      on_event: gets each event of the feed of this host's first rank, in order, in a thread of its own.
      terminal: shows rank 0's output live, and our messages.
      group: of the hosts; None: this one is alone.
      command: starts a worker; the path of the spec is appended.

    Raises:
      WorkerError: the workers could not be started at all.
    """
    started = time.time()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = TerminalWriter(terminal)
    try:
        with SignalInbox(inbox), Guardian() as guardian:
            for attempt in range(config.max_restarts + 1):
                current = dataclasses.replace(spec, coordinator=_coordinator(group), attempt=attempt)
                folder.logs.mkdir(parents=True, exist_ok=True)
                current.save(folder.launch_spec)
                run = Attempt(
                    current,
                    command=(*command, str(folder.launch_spec.resolve())),
                    extra_environment=config.env,
                    grace_seconds=parse_duration(config.grace_period),
                    on_event=on_event,
                    inbox=inbox,
                    terminal=writer,
                    guardian=guardian,
                )
                outcome = run.run() if group is None else _run_on_all(group, run, current, inbox)
                failure = outcome.failure
                if failure is None:
                    break
                if failure.rank is not None and failure.rank in current.ranks:
                    log = folder.rank_log(failure.rank, attempt)
                    failure = dataclasses.replace(failure, traceback_path=folder.relative(log))
                writer.show(failure_details(failure, folder))
                writer.say(failure_report(failure, folder))
                if outcome.told_to_stop or failure.kind in _REFUSALS:
                    break
                if attempt < config.max_restarts:
                    writer.say(f"restart {attempt + 1} of {config.max_restarts}")
    except OSError as error:
        raise WorkerError(
            f"the workers could not be started: {error}",
            exit_code=1,
            hint="check the free space of the run folder, and the limits of processes and open files (`ulimit -a`)",
        ) from error
    finally:
        writer.close(_TERMINAL_SECONDS)
    return LaunchResult(
        exit_code=0 if failure is None else failure.exit_code or 1,
        failure=failure,
        interrupted=failure is not None and failure.kind == "signal",
        attempts=attempt + 1,
        started=started,
        ended=time.time(),
    )


def _coordinator(group: HostGroup | None) -> str:
    """Where rank 0 serves the rendezvous of the next attempt."""
    if group is None:
        return f"127.0.0.1:{free_port()}"
    port = group.exchange(free_port("") if group.place.host == 0 else None)[0]
    group.require_all("the workers were started")
    return f"{group.place.address}:{port}"


def _run_on_all(group: HostGroup, attempt: Attempt, spec: LaunchSpec, inbox: queue.SimpleQueue[Any]) -> Outcome:
    """The attempt's outcome on all hosts: the same one on each of them."""
    with group.watch(lambda _: inbox.put(OtherHostFailed())):
        own = attempt.run()
    failure = own.failure
    if failure is not None and failure.rank is not None:
        log = spec.folder.rank_log(failure.rank, spec.attempt).resolve()
        failure = dataclasses.replace(failure, traceback_path=str(log))
    told = own.told_to_stop

    def told_meanwhile() -> bool:
        nonlocal told
        while not inbox.empty():
            message = inbox.get()
            told |= isinstance(message, SignalReceived) and message.signum not in PASSED_ON
        return told and failure is None

    value = {"failure": None if failure is None else dataclasses.asdict(failure), "told": told}
    values = group.exchange(value, failed=failure is not None, give_up=told_meanwhile)
    gone = [k for k, found in enumerate(values) if found is None]
    failures = [WorkerFailure(**found["failure"]) for found in values if found is not None and found["failure"]]
    failures += [
        WorkerFailure(
            kind="worker",
            message=f"{group.name(k)} has gone: its launcher was killed, or its network failed",
            host=group.names[k],
            exit_code=1,
            time=time.time(),
        )
        for k in gone
    ]
    return Outcome(first_of(failures), told or bool(gone) or any(found["told"] for found in values if found))
