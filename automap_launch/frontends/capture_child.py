"""The process in which the script runs while its step is captured: `python -m automap_launch.frontends.capture_child`.

It leaves with `os._exit` the moment the outcome is on disk: nothing of the script, no `finally` and no `except` clause,
runs after that.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from automap_launch.errors import AutomapError, CaptureError
from automap_launch.frontends import jit_hook
from automap_launch.frontends.build_step import build_step
from automap_launch.frontends.capture_record import CaptureRecord, CaptureTask
from automap_launch.frontends.detect_step import StepDetector
from automap_launch.frontends.functions_seen import Call
from automap_launch.frontends.import_hook import when_imported
from automap_launch.frontends.script import UserFailure, run_script, user_traceback
from automap_launch.frontends.side_effects import redirect_writes
from automap_launch.frontends.silent_wandb import disable_wandb
from automap_launch.frontends.trax import hook as trax_hook
from automap_launch.frontends.world import enter_single_world
from automap_launch.train_step import TrainStep
from automap_launch.units import parse_bytes

if TYPE_CHECKING:
    from automap_launch.frontends.tensorflow import detect_step as tensorflow_steps

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


class CaptureRun:
    """One capture: runs the script until the detector accepts a step or refuses."""

    def __init__(self, task: CaptureTask, write_in_place: Callable[[], None]) -> None:
        self.task = task
        self.write_in_place = write_in_place
        self.failure: UserFailure | None = None
        self.detector = StepDetector(
            parse_bytes(task.materialize_limit), self.accept, self.refuse, step_name=task.step_name
        )
        self.tensorflow: tensorflow_steps.StepDetector | None = None

    def run(self) -> NoReturn:
        """Runs the script; does not return."""
        if self.task.kind != "tensorflow":
            jit_hook.install(self._on_call)
            enter_single_world()
            self.detector.trace.start()
        if self.task.kind != "jax":
            when_imported("tensorflow", lambda _: self._watch_tensorflow())
        try:
            run_script(self.task.entry)
        except AutomapError as error:
            self.finish(CaptureRecord.of_error(error))
        except BaseException as error:
            # Whatever ends a script is one of its outcomes; it is told to the parent below.
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                self.failure = user_traceback(error, self.task.entry)
                print(self.failure.text, file=sys.stderr)
        self._decide()

    def _watch_tensorflow(self) -> None:
        """The script has imported TensorFlow: its functions may be the step, as well as JAX's."""
        from automap_launch.frontends.tensorflow import capture

        self.tensorflow = capture.watch(
            lambda make: self.save(lambda: make(self.task.entry, self.task.platforms)), self.refuse, self.task.step_name
        )

    def _decide(self) -> NoReturn:
        """The script has ended. Of two front ends, that one knows best which saw the script train."""
        if self.tensorflow is not None and (self.tensorflow.trained or not self.detector.functions):
            self.tensorflow.decide()
        if self.task.kind == "tensorflow":
            self.refuse(
                CaptureError(
                    "frontend.kind=tensorflow, but the script trained nothing with TensorFlow",
                    hint="leave frontend.kind out",
                )
            )
        self.detector.decide()

    def _on_call(self, function: jit_hook.HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.detector.on_call(function, args, kwargs)

    def accept(self, call: Call, before: Call | None) -> NoReturn:
        """Saves the step of a jitted function and leaves."""
        self.save(lambda: build_step(call, before, self.task.entry, self.task.platforms))

    def save(self, make: Callable[[], TrainStep]) -> NoReturn:
        """Saves the step that `make` gives and leaves."""
        try:
            step = make()
            self.write_in_place()
            step.save(Path(self.task.folder))
            record = CaptureRecord(outcome="step")
        except AutomapError as error:
            record = CaptureRecord.of_error(error)
        except BaseException as error:
            # Raised into the script it might be swallowed there: it is a defect of ours, told as such.
            record = CaptureRecord(outcome="internal", message=traceback.format_exc())
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                # Half a step is of no use, and how the launch ended has still to be written.
                shutil.rmtree(self.task.folder, ignore_errors=True)
                record = CaptureRecord(outcome="disk", message=f"no space is left to write {self.task.folder}")
        self.finish(record)

    def refuse(self, error: AutomapError) -> NoReturn:
        """Tells why there is no step and leaves. A failure of the script itself comes first."""
        if self.failure is not None:
            self.finish(CaptureRecord(outcome="script", **dataclasses.asdict(self.failure)))
        self.finish(CaptureRecord.of_error(error))

    def finish(self, record: CaptureRecord) -> NoReturn:
        """Writes the outcome and leaves the process."""
        self.write_in_place()
        record.save(Path(self.task.record))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def leave_with_parent() -> None:
    """Ends this process when the launcher is gone, even if that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> NoReturn:
    """Runs the task whose file is the only argument."""
    task = CaptureTask.from_dict(json.loads(Path(sys.argv[1]).read_text()))
    leave_with_parent()
    disable_wandb()
    trax_hook.install(writes=False)
    CaptureRun(task, redirect_writes(Path(task.scratch))).run()


if __name__ == "__main__":
    main()
