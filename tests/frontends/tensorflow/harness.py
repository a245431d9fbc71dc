"""Runs user scripts plainly, captures them, and runs them under plans, many in one process that loads TensorFlow once.

`python -m tests.frontends.tensorflow.harness JOBS.json`: each job is done in a fork, so that none sees another's
hooks or variables. TensorFlow and JAX are imported before, but start no thread until they are used.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

SCRIPTS = Path(__file__).parent / "scripts"
REPOSITORY = Path(__file__).resolve().parents[3]
DEVICES = 8


@dataclass(frozen=True)
class Job:
    """What to do with a script.

    Attributes:
      script: of `scripts/`, or an absolute path.
      kind: `plain`: TensorFlow alone. `capture`: its step into `folder`. `run`: under the plan (data, model, stages,
        micro_batches) that is made for the step in `folder`.
      step: `frontend.step`.
      local_statistics: the plan's `allow_local_batch_stats`.
      floatx: Keras's default type of floating-point numbers, for scripts that do not set one.
      xla: False, of a plain run: TensorFlow does not compile, whatever the script asks for.
      last_bit: of a plain run: the seed by which Keras's random initial weights are changed in their last bit.
    """

    name: str
    kind: str
    script: str
    args: list[str] = field(default_factory=list)
    folder: str = ""
    plan: tuple[int, int, int, int] = (1, 1, 1, 1)
    step: str | None = None
    local_statistics: bool = False
    floatx: str = "float32"
    xla: bool = True
    last_bit: int | None = None


@dataclass(frozen=True)
class Outcome:
    """`text`: what the script printed. `record`: of a capture, as `CaptureRecord` has it.

    `report`: of a run; with `refused`, the message, where the plan was.
    """

    code: int
    text: str
    record: dict[str, Any]
    report: dict[str, Any]


def run_jobs(jobs: list[Job], folder: Path, timeout: float = 600) -> dict[str, Outcome]:
    """Does the jobs one after the other; their outcomes by name."""
    folder.mkdir(parents=True, exist_ok=True)
    task = folder / "jobs.json"
    task.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(DEVICES),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.frontends.tensorflow.harness", str(task)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {job.name: outcome(folder, job.name) for job in jobs}


def outcome(folder: Path, name: str) -> Outcome:
    """What came of the job `name` of `run_jobs`."""

    def read(suffix: str) -> Any:
        path = folder / f"{name}.{suffix}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    code = int((folder / f"{name}.code").read_text())
    return Outcome(code, (folder / f"{name}.out").read_text(errors="replace"), read("record"), read("report"))


def main(task: Path) -> None:
    import keras
    import tensorflow

    del keras, tensorflow
    for record in json.loads(task.read_text()):
        job = Job(**{**record, "plan": tuple(record["plan"])})
        child = os.fork()
        if child == 0:
            _child(job, task.parent)
        _, status = os.waitpid(child, 0)
        (task.parent / f"{job.name}.code").write_text(str(os.waitstatus_to_exitcode(status)))


def _child(job: Job, folder: Path) -> NoReturn:
    output = os.open(folder / f"{job.name}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 0
    import keras

    keras.config.set_floatx(job.floatx)
    try:
        {"plain": _plain, "capture": _capture, "run": _run}[job.kind](job, folder)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _plain(job: Job, folder: Path) -> None:
    from automap_launch.frontends.script import run_script
    from automap_launch.train_step import Entry

    if not job.xla:
        _never_compile()
    if job.last_bit is not None:
        _change_last_bits(job.last_bit)
    run_script(Entry(script=str(SCRIPTS / job.script), args=tuple(job.args)))


def _never_compile() -> None:
    """Has every `tf.function` made without `jit_compile`, Keras's among them."""
    import tensorflow as tf

    real = tf.function

    def function(*args: Any, **options: Any) -> Any:
        return real(*args, **{**options, "jit_compile": False})

    tf.function = function


def _change_last_bits(seed: int) -> None:
    """Has the random initial weights of Keras's layers rounded otherwise, up or down by chance."""
    import keras
    import numpy as np

    real = keras.initializers.VarianceScaling.__call__
    draws = np.random.default_rng(seed)

    def initial(self: Any, shape: Any, dtype: Any = None) -> Any:
        weights = keras.ops.convert_to_numpy(real(self, shape, dtype))
        ends = draws.choice([-np.inf, np.inf], weights.shape)
        return keras.ops.convert_to_tensor(np.nextafter(weights, ends.astype(weights.dtype)))

    keras.initializers.VarianceScaling.__call__ = initial


def _capture(job: Job, folder: Path) -> None:
    from automap_launch.frontends.capture_child import CaptureRun
    from automap_launch.frontends.capture_record import CaptureTask
    from automap_launch.frontends.side_effects import redirect_writes
    from automap_launch.train_step import Entry

    scratch = folder / f"{job.name}.files"
    task = CaptureTask(
        entry=Entry(script=str(SCRIPTS / job.script), args=tuple(job.args)),
        kind="auto",
        step_name=job.step,
        materialize_limit="16MiB",
        platforms=("cpu",),
        folder=job.folder,
        record=str(folder / f"{job.name}.record.json"),
        scratch=str(scratch),
    )
    CaptureRun(task, redirect_writes(scratch)).run()


def _run(job: Job, folder: Path) -> None:
    import jax

    from automap_launch.errors import PlanError
    from automap_launch.frontends.lowering import LoweredStep
    from automap_launch.frontends.script import run_script
    from automap_launch.frontends.tensorflow.run import take_the_step
    from automap_launch.plan.baselines import inner_groups
    from automap_launch.plan.decision import Decision
    from automap_launch.plan.derive import derive_layout
    from automap_launch.plan.execution import Execution
    from automap_launch.plan.sharding import why_invalid
    from automap_launch.program.analyse import analyse
    from automap_launch.runtime.build import build_executable
    from automap_launch.runtime.signatures import fit
    from automap_launch.train_step import Entry, TrainStep

    data, model, stages, micro_batches = job.plan
    step = TrainStep.load(Path(job.folder))
    program = analyse(step)
    decision = Decision(data, model, inner_groups(program, model) if model > 1 else frozenset())
    assert why_invalid(program, decision) is None
    layout = derive_layout(program, decision)
    schedule = "1f1b" if stages > 1 else "none"
    execution = Execution(
        stages=stages, micro_batches=micro_batches, schedule=schedule, local_statistics=job.local_statistics
    )
    observer = _Observer()

    def build(function: Any, lowered: LoweredStep) -> Any:
        fitted = fit(step, layout, lowered.arguments, lowered.results)
        signature = dataclasses.replace(
            step,
            arguments=fitted.arguments,
            results=fitted.results,
            modules=lowered.modules,
            fingerprint=lowered.fingerprint,
            sources=lowered.sources,
        )
        return build_executable(signature, fitted.layout, execution, devices=jax.devices()[: data * model * stages])

    take_the_step(step, build, observer)
    try:
        run_script(Entry(script=str(SCRIPTS / job.script), args=tuple(job.args)))
    except PlanError as error:
        observer.report["refused"] = str(error)
        raise
    finally:
        (folder / f"{job.name}.report.json").write_text(json.dumps(observer.report))


class _Observer:
    """Counts what passes by."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {"steps": 0, "signatures": [], "fingerprints": [], "outputs": []}

    def first_step(self, runner: Any, leaves: Any) -> None:
        assert len(runner.arguments) == len(leaves)

    def lowered(self, lowered: Any) -> None:
        self.report["fingerprints"].append(lowered.fingerprint)

    def stepped(self, report: Any) -> None:
        self.report["steps"] += 1
        self.report["outputs"] = sorted(report.outputs)
        if report.compile_seconds is not None:
            self.report["signatures"].append(report.signature)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
