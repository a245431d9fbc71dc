"""What XLA makes of plans before they are taken: each is compiled for virtual CPU devices, in a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from automap_launch.plan.build import takes_local_statistics
from automap_launch.plan.compiled import PLAN_REFUSED, CompiledPlan, CompileRequest
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.execution import Execution
from automap_launch.plan.explain import describe_mesh, plain_table, short_mesh
from automap_launch.run_folder import FAVOURITE
from automap_launch.search.config import SearchConfig
from automap_launch.search.space import Estimate
from automap_launch.units import format_bytes

NEXT = "next_best"


class NotCompiledError(Exception):
    """A plan was not compiled, which says nothing against it; the message says why."""


class CompilerFailedError(Exception):
    """XLA refuses a plan, or crashes on it, as it would on the devices; the message is XLA's."""


Compile = Callable[[Decision], CompiledPlan]


@dataclass(frozen=True)
class Check:
    """A plan as predicted and as compiled; bytes of a device. None: not compiled, and `reason` says why.

    `fits`: whether it can run; false as well where XLA failed on it, and None where it was not tried.
    """

    plan: str
    mesh: str
    storage: str
    predicted_memory_bytes: int
    compiled_memory_bytes: int | None
    predicted_collective_bytes: int
    compiled_collective_bytes: int | None
    fits: bool | None
    reason: str | None = None


@dataclass(frozen=True)
class Verified:
    """The plans that are left, by name, the favourite first; what was checked, in order; what the user is told."""

    plans: dict[str, Decision]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]


def plans_to_verify(config: SearchConfig, platform: str) -> int:
    """`search.verify_top_k`, or what it is where it is null."""
    if config.verify_top_k is not None:
        return config.verify_top_k
    return 0 if platform == "cpu" else 1


def verify(
    plans: Mapping[str, Decision],
    front: Sequence[tuple[Decision, Estimate]],
    model: CostModel,
    top_k: int,
    compile_: Compile,
) -> Verified:
    """Compiles the first `top_k` plans and leaves out those that need more memory than a device has, or XLA fails on.

    In the favourite's place comes the fastest plan of `front` that fits when the prediction of its memory is corrected
    by how far that of the favourite was off. Where none does, the favourite stays, and the user is told.

    Args:
      front: plans by step time, each needing less memory than those before it (`Evaluator.front`).
      compile_: raises NotCompiledError where it did not try; that plan is taken as predicted. CompilerFailedError
        where XLA failed.
    """
    left, checks, notes = dict(plans), [], []
    limit = model.cluster.device.memory_bytes
    for name in list(plans)[:top_k]:
        decision = plans[name]
        while True:
            check = _check(name, decision, model, compile_)
            checks.append(check)
            if check.fits is None:
                notes.append(f"the plan `{name}` was not compiled: {check.reason}")
            if check.fits is not False:
                left[name] = decision
                break
            successor, note = _in_place_of(decision, check, front, limit)
            notes.append(note)
            if successor is None:
                del left[name]
                break
            if successor == decision:
                break
            left[name] = decision = successor
    best = left[FAVOURITE]
    rest = {name: decision for name, decision in left.items() if name != FAVOURITE and decision != best}
    return Verified({FAVOURITE: best, **rest}, tuple(checks), tuple(notes))


def table(checks: Sequence[Check]) -> Table:
    """Predicted and compiled numbers of the plans that were compiled, side by side."""
    shown = plain_table("Compiled by XLA for virtual CPU devices, a device")
    for name in ("plan", "mesh", "ZeRO"):
        shown.add_column(name, no_wrap=True)
    for name in ("memory", "compiled", "collectives", "compiled"):
        shown.add_column(name, justify="right", no_wrap=True)
    for check in checks:
        if check.compiled_memory_bytes is None:
            continue
        shown.add_row(
            check.plan if check.fits is not False else f"{check.plan}, does not fit",
            check.mesh,
            "-" if check.storage == "none" else check.storage,
            format_bytes(check.predicted_memory_bytes),
            _bytes(check.compiled_memory_bytes),
            format_bytes(check.predicted_collective_bytes),
            _bytes(check.compiled_collective_bytes),
        )
    return shown


class ChildCompiler:
    """Compiles plans in child processes, all of them together within `seconds`.

    Args:
      train_step: folder of the captured step. limit: `search.verify_timeout` as the user wrote it.
    """

    def __init__(self, model: CostModel, train_step: Path, seconds: float, max_blocks: int, limit: str) -> None:
        self._model = model
        self._train_step = train_step
        self._deadline = time.monotonic() + seconds
        self._max_blocks = max_blocks
        self._limit = limit

    def __call__(self, decision: Decision) -> CompiledPlan:
        """Compiles one plan.

        Raises:
          NotCompiledError: the plan has several stages, or time or the machine's memory ran out, or the captured step
            cannot be read.
          CompilerFailedError: XLA refused it or crashed.
        """
        if decision.stages > 1:
            raise NotCompiledError("each stage of a pipeline is a module of its own, on devices of its own")
        program = self._model.program
        if program.step.has_callbacks:
            raise NotCompiledError("the step calls back into Python, which only the script's own process can do")
        with tempfile.TemporaryDirectory(prefix="automap-launch-") as name:
            folder = Path(name)
            derive_layout(program, decision).save(folder / "layout.json")
            execution = Execution(
                micro_batches=decision.micro_batches,
                local_statistics=takes_local_statistics(decision, program),
                max_blocks=self._max_blocks,
            )
            answer = folder / "answer.json"
            layout = str(folder / "layout.json")
            request = CompileRequest(str(self._train_step.resolve()), layout, execution, str(answer))
            (folder / "request.json").write_text(json.dumps(asdict(request)))
            self._run(folder, decision.devices)
            return CompiledPlan(**json.loads(answer.read_text()))

    def _run(self, folder: Path, devices: int) -> None:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        command = [sys.executable, "-m", "automap_launch.runtime.compile_plan", str(folder / "request.json")]
        log = folder / "log"
        with log.open("wb") as stream:
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
            )
            try:
                code = child.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise NotCompiledError(f"XLA was not done after search.verify_timeout={self._limit}") from error
            finally:
                # Also when a signal ends the launch: the child is never left behind.
                if child.poll() is None:
                    child.kill()
                    child.wait()
        if code == -signal.SIGKILL:
            raise NotCompiledError("the compiler's process was killed: is the memory of this machine enough?")
        if code != 0:
            lines = log.read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"the compiler's process ended with {code}"
            raise (CompilerFailedError if code == PLAN_REFUSED or code < 0 else NotCompiledError)(reason)


def _check(name: str, decision: Decision, model: CostModel, compile_: Compile) -> Check:
    memory = model.estimate(decision).memory.total
    collectives = sum(use.bytes for use in model.breakdown(decision).collectives)
    mesh, storage = short_mesh(decision), decision.storage
    try:
        compiled = compile_(decision)
    except NotCompiledError as error:
        return Check(name, mesh, storage, memory, None, collectives, None, None, str(error))
    except CompilerFailedError as error:
        return Check(name, mesh, storage, memory, None, collectives, None, False, str(error))
    fits = compiled.memory <= model.cluster.device.memory_bytes
    return Check(name, mesh, storage, memory, compiled.memory, collectives, compiled.collectives, fits)


def _in_place_of(
    decision: Decision, check: Check, front: Sequence[tuple[Decision, Estimate]], limit: float
) -> tuple[Decision | None, str]:
    """What is taken in place of a plan that cannot run (None: nothing), and what the user is told."""
    predicted, compiled = check.predicted_memory_bytes, check.compiled_memory_bytes
    named = f"the plan `{check.plan}` ({describe_mesh(decision)})"
    if compiled is None:
        trouble, correction = f"XLA fails on {named}: {check.reason}", 1.0
    else:
        needs = f"needs {format_bytes(compiled)} a device ({format_bytes(predicted)} predicted)"
        trouble = f"compiled by XLA, {named} {needs}, and there are {format_bytes(limit)}"
        correction = compiled / predicted
    if check.plan != FAVOURITE:
        return None, f"{trouble}: it is left out"
    for other, estimate in front:
        memory = estimate.memory.total
        if memory < predicted and memory * correction <= limit:
            return other, f"{trouble}: the next best plan is taken"
    return decision, f"{trouble}; no other plan known should do, so it is taken all the same"


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)
