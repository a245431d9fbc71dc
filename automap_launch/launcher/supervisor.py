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
from automap_launch.launcher.attempt import Attempt
from automap_launch.launcher.config import LauncherConfig
from automap_launch.launcher.failure import WorkerFailure
from automap_launch.launcher.guardian import Guardian
from automap_launch.launcher.output import TerminalWriter
from automap_launch.launcher.ports import free_port
from automap_launch.launcher.report import failure_details, failure_report
from automap_launch.launcher.signals import SignalInbox
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
    command: Sequence[str] = WORKER_COMMAND,
) -> LaunchResult:
    """Runs the workers of `spec` until all have ended; starts all anew after a failure, `config.max_restarts` times.

    When it returns, no process of the workers is left, every event was handled, and signal handlers are as before.
    The failure has been reported on `terminal`.

    Args:
      spec: `coordinator` and `attempt` are filled in here.
      on_event: gets each event of rank 0's feed, in order, in a thread of its own.
      terminal: shows rank 0's output live, and our messages.
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
                current = dataclasses.replace(spec, coordinator=f"127.0.0.1:{free_port()}", attempt=attempt)
                folder.logs.mkdir(parents=True, exist_ok=True)
                current.save(folder.launch_spec)
                outcome = Attempt(
                    current,
                    command=(*command, str(folder.launch_spec.resolve())),
                    extra_environment=config.env,
                    grace_seconds=parse_duration(config.grace_period),
                    on_event=on_event,
                    inbox=inbox,
                    terminal=writer,
                    guardian=guardian,
                ).run()
                failure = outcome.failure
                if failure is None:
                    break
                if failure.rank is not None:
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
