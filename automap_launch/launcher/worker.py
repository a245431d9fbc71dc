"""A worker: runs the unmodified script with its step replaced by the plan's.

Started as `python -m automap_launch.launcher.worker SPEC.json` by the supervisor, one process a rank.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from automap_launch.errors import AutomapError
from automap_launch.frontends.config import FrontendConfig
from automap_launch.frontends.side_effects import COLLECTIVE_WRITERS, announce_writes, redirect_writes
from automap_launch.frontends.silent_wandb import disable_wandb
from automap_launch.frontends.trax import hook as trax_hook
from automap_launch.launcher.agreement import check_same_program, check_same_values
from automap_launch.launcher.environment_record import write_environment
from automap_launch.launcher.failure import FailureRecord
from automap_launch.launcher.heap import give_back_freed_memory, keep_freed_memory
from automap_launch.launcher.rendezvous import die_with_parent, leave_together, set_up_devices
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.launcher.step_builder import StepBuilder
from automap_launch.tracking.events import ReadyEvent, TrialEvent
from automap_launch.tracking.feed import Feed
from automap_launch.tracking.meter import Meter
from automap_launch.train_step import Runner, TrainStep
from automap_launch.units import parse_bytes

if TYPE_CHECKING:
    from automap_launch.frontends.deferred import DeferredTrace
    from automap_launch.frontends.lowering import LoweredStep
    from automap_launch.frontends.substitute import StepReport

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
# These stand in for functions of Python and JAX: an error in there is what the script would have met anyway.
_STAND_INS = tuple(
    os.path.join(_OURS + "frontends", *name.split("/")) + ".py"
    for name in ("jit_hook", "overlay", "side_effects", "world", "tensorflow/calls", "tensorflow/keras_fit")
)

# How long the script's exit handlers may take after a failure: the other ranks wait for this one to go.
_LAST_WORDS_SECONDS = 10.0


class StepObserver:
    """Ends deferred creation at the first step, checks that ranks agree, and feeds the meter."""

    def __init__(self, trace: DeferredTrace, meter: Meter) -> None:
        self._trace = trace
        self._meter = meter

    def first_step(self, runner: Runner, leaves: Sequence[Any]) -> None:
        from automap_launch.launcher.trial import TrialRunner

        self._trace.stop()
        check_same_values(runner.arguments, leaves)
        if isinstance(runner, TrialRunner):
            runner.decide(leaves)

    def lowered(self, lowered: LoweredStep) -> None:
        from automap_launch.frontends.jax_internals import evaluating

        with evaluating():
            check_same_program(lowered.fingerprint)

    def stepped(self, report: StepReport) -> None:
        if report.compile_seconds is not None:
            self._meter.compiled(report.compile_seconds, report.signature)
            self._keep_memory_of_steps()
        self._meter.step(report.outputs, examples=report.examples, tokens=report.tokens, markers=report.markers)

    @staticmethod
    def _keep_memory_of_steps() -> None:
        """Not before a step has run: what the making of the state frees is to go back to the system."""
        import jax

        if jax.default_backend() == "cpu":
            keep_freed_memory()


_failed: list[int] = []  # the exit code, once this worker has failed


def main(arguments: Sequence[str]) -> None:
    """Runs one worker to its end; returns only when the script ended well, else leaves the process."""
    die_with_parent()
    spec, rank = LaunchSpec.load(Path(arguments[0])), int(os.environ["RANK"])
    if spec.platform == "cpu" and not spec.rivals:  # steps of a trial would be timed with memory that is always new
        give_back_freed_memory()
    feed = Feed.from_environment()
    meter = Meter(feed if rank == 0 else Feed(None))
    phase = "worker"
    try:
        set_up_devices(spec, rank)
        write_environment(spec.folder.environment(rank))
        _prepare(spec, rank, feed, meter)
        phase = "script"
        from automap_launch.frontends.script import run_script

        run_script(spec.entry)
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            _leave(_record(error, spec, rank, phase), meter)
    # Before the interpreter's own end: steps in flight are reported while JAX is still there, the script's exit
    # handlers run after that, and this process's leave-taking, which was registered first, after those.
    meter.close()


def _prepare(spec: LaunchSpec, rank: int, feed: Feed, meter: Meter) -> None:
    """Makes the world in which the script runs."""
    import jax

    from automap_launch.frontends.deferred import DeferredTrace
    from automap_launch.frontends.world import enter_single_world, read_everywhere

    atexit.register(_say_goodbye)
    frontend = FrontendConfig(**spec.frontend)
    trace = DeferredTrace(parse_bytes(frontend.materialize_limit))
    _take_the_step(spec, StepObserver(trace, meter), feed)
    if rank == spec.ranks.start:
        feed.send(ReadyEvent(time.time(), spec.processes, jax.device_count(), spec.attempt))
    if frontend.world == "single":
        enter_single_world()
    elif spec.processes > 1:
        read_everywhere()
    trax_hook.install(writes=rank == 0)
    if rank > 0:
        disable_wandb()
    if spec.processes > 1:
        _write_once(spec, rank, alike=frontend.world == "single")
    trace.start()


def _write_once(spec: LaunchSpec, rank: int, alike: bool) -> None:
    """Rank 0 alone writes where the script says. `alike`: the script does not know of ranks, so that the others make
    themselves what they need of it."""
    from automap_launch.launcher import creations

    if rank > 0:
        redirect_writes(
            spec.folder.rank_files(rank),
            COLLECTIVE_WRITERS,
            keep=[spec.folder.logs],
            shared=not alike,
            made_elsewhere=creations.is_announced if alike else None,
        )
    elif alike:
        # Orbax moves what it has written with `etils`, in threads that know no more of Orbax.
        announce_writes(creations.announce, (*COLLECTIVE_WRITERS, "etils"), keep=spec.folder.root)


def _take_the_step(spec: LaunchSpec, observer: StepObserver, feed: Feed) -> None:
    """Has the front end that captured the step run it as the plan says."""
    from automap_launch.frontends import jit_hook
    from automap_launch.frontends.substitute import Substitute
    from automap_launch.frontends.tensorflow.run import take_the_step
    from automap_launch.runtime.signatures import same_state

    step = TrainStep.load(Path(spec.train_step))

    def on_trial(seconds: Mapping[str, float | None], chosen: str) -> None:
        feed.send(TrialEvent(time.time(), dict(seconds), chosen))

    build = StepBuilder(spec, step, on_trial)
    if step.frontend == "tensorflow":
        take_the_step(step, build, observer)
        return
    jit_hook.install(
        Substitute(
            step,
            spec.platform,
            accepts=lambda arguments: same_state(step, arguments),
            build=build,
            observer=observer,
        )
    )


def _record(error: BaseException, spec: LaunchSpec, rank: int, phase: str) -> int:
    """Shows the failure, writes it down for the supervisor, and returns the exit code."""
    from automap_launch.frontends.script import told_by_the_scripts_hook, user_traceback

    if isinstance(error, KeyboardInterrupt):
        told_by_the_scripts_hook(error)
        return 130
    file = line = None
    text, code, kind, told = "", 1, phase, False
    if isinstance(error, AutomapError):
        kind, code, file, line = error.kind, error.exit_code, error.file, error.line
        message = error.message if error.hint is None else f"{error.message} ({error.hint})"
        text = f"{message}\n"
    elif phase == "worker" or _raised_by_us(error.__traceback__):
        kind = "worker" if phase == "worker" else "internal"
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
    else:
        failure = user_traceback(error, spec.entry)
        message, file, line, text, code = failure.message, failure.file, failure.line, failure.text, failure.exit_code
        if isinstance(error, SystemExit) and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        told = told_by_the_scripts_hook(error)
    if text and not told:
        print(text, file=sys.stderr, end="", flush=True)
    FailureRecord(
        rank=rank,
        host=socket.gethostname(),
        time=time.time(),
        kind=kind,
        message=message,
        exit_code=code,
        file=file,
        line=line,
        traceback=text,
    ).save(spec.folder.rank_failure(rank, spec.attempt))
    return code


def _raised_by_us(trace: TracebackType | None) -> bool:
    """Whether the innermost frame is this package's: then it is no doing of the script."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    return bool(files) and files[-1].startswith(_OURS) and files[-1] not in _STAND_INS


def _leave(code: int, meter: Meter) -> None:
    """Ends the process now: a rank that lingers keeps the others waiting in a collective.

    The script's exit handlers run and its open files are flushed, as at any end of Python, but within a time limit.
    """
    watchdog = threading.Timer(_LAST_WORDS_SECONDS, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    # Of a neighbour that has left, the supervisor stops the others; it must not break these words off.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    meter.close(timeout=1.0)
    _failed.append(code)
    atexit._run_exitfuncs()
    _end(code)


def _say_goodbye() -> None:
    """Runs after the script's exit handlers and before JAX's, which would wait for the other ranks."""
    if _failed:
        _end(_failed[0])
    _flush_open_files()  # Python closes a file that it ends with only if nothing of ours still knows the script
    leave_together()


def _end(code: int) -> NoReturn:
    _flush_open_files()
    os._exit(code)


def _flush_open_files() -> None:
    for stream in [o for o in gc.get_objects() if isinstance(o, (io.TextIOWrapper, io.BufferedWriter))]:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile, or a pipe that nobody reads
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
