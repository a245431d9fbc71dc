"""Runs one cell of `verify_matrix.py` on eight devices: three steps by the plan, against three plain ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from automap_launch.errors import PlanError
from automap_launch.plan.baselines import inner_groups, stream_group
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.execution import Execution
from automap_launch.program.analyse import analyse
from automap_launch.program.program import Program
from automap_launch.runtime import accumulation, pipeline_parts, sections
from automap_launch.runtime.build import build_executable
from tests import equality
from tests.runtime.captured_by_hand import step_of
from tests.split.models import Model, flat_run
from tools.matrix_cells import BY_POSITION, PLANS, Cell, Precision, Sabotage

ROOT = Path(__file__).resolve().parents[1]
ROWS, STEPS = 32, 3
TOLERANCE = {"f32": equality.F32_TOLERANCE, "f64": equality.F64_TOLERANCE}


@dataclass(frozen=True)
class Outcome:
    """What a cell did.

    Attributes:
      passed: it did what it must.
      said: in words: how far the worst tensor is off, the reason of a refusal, or what is wrong.
      by_control: tensors that are equal only up to rounding's own noise, as the control shows it.
      seconds: of the cell.
    """

    passed: bool
    said: str
    by_control: tuple[str, ...] = ()
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        return asdict(self)


def run_cell(cell: Cell, precision: Precision) -> Outcome:
    """Runs a cell; whatever the plan's run raises makes it fail."""
    began = time.perf_counter()
    with jax.enable_x64(precision == "f64"):
        model = _of_rows(cell.make())
        try:
            with sabotaged(cell.sabotage):
                run = _run(model, cell)
        except PlanError as error:
            passed = bool(cell.refused) and cell.refused in str(error) and error.line is not None
            said = f"refused: {error}".replace(f"{ROOT}/", "")
            return Outcome(passed, said, seconds=time.perf_counter() - began)
        if cell.refused:
            return Outcome(False, f"ran, but must be refused ({cell.refused})", seconds=time.perf_counter() - began)
        report = _compare(model, run, cell, precision)
    seconds = time.perf_counter() - began
    worst = f"worst {report.worst.relative:.1e} ({report.worst.path})"
    if cell.sabotage != "none":
        noticed = f"noticed in {len(report.different)} of {len(report.tensors)} tensors"
        return Outcome(not report.equal, noticed if not report.equal else f"not noticed, {worst}", seconds=seconds)
    if report.equal:
        return Outcome(True, worst, report.by_control, seconds)
    return Outcome(False, str(report), report.by_control, seconds)


@contextmanager
def sabotaged(how: Sabotage) -> Iterator[None]:
    """Spoils the sums over micro-batches of runs that are built in this context."""
    modules: tuple[Any, ...] = (accumulation, pipeline_parts)
    plain = sections.accumulate

    def dropped(total: Any, value: Any, reduction: Any) -> Any:
        """Without the first micro-batch, the one that finds nothing added up."""
        return plain(total, value * (jnp.abs(total).sum() > 0).astype(value.dtype), reduction)

    def scaled(total: Any, value: Any, reduction: Any) -> Any:
        return plain(total, value * 1.001 if jnp.issubdtype(value.dtype, jnp.floating) else value, reduction)

    if how == "none":
        yield
        return
    for module in modules:
        module.accumulate = dropped if how == "dropped" else scaled
    try:
        yield
    finally:
        for module in modules:
            module.accumulate = plain


def _of_rows(model: Model) -> Model:
    def batch(seed: int) -> Any:
        return model.batch(seed, ROWS)  # type: ignore[call-arg]

    return Model(model.init, model.step, batch, model.gradient)


def _run(model: Model, cell: Cell) -> dict[str, np.ndarray]:
    plan = PLANS[cell.plan]
    captured = model.capture(donated=True)
    step = step_of(captured)
    program = analyse(step)
    layout = derive_layout(program, Decision(plan.data, plan.model, _on_the_model_axis(program, plan.model)))
    execution = Execution(plan.stages, plan.micro_batches, plan.schedule)
    executable = build_executable(step, layout, execution, devices=jax.devices()[:8])
    state, metrics = model.init(), []
    for seed in range(STEPS):
        leaves = executable(jax.tree.leaves((state, model.batch(seed))))
        state, made = jax.tree.unflatten(captured.tree, leaves)
        metrics.append(made)
    return flat_run(state, metrics)


def _on_the_model_axis(program: Program, size: int) -> frozenset[int]:
    """Inner dims; the stream between layers where the model has no other (a recurrent layer)."""
    if size == 1:
        return frozenset()
    stream = stream_group(program)
    chosen = inner_groups(program, size)
    if not chosen and stream is not None and program.groups[stream].divisor % size == 0:
        chosen = frozenset({stream})
    if not chosen:
        raise ValueError(f"no group of the model is divisible by {size}")
    return chosen


def _compare(model: Model, run: dict[str, np.ndarray], cell: Cell, precision: Precision) -> equality.EqualityReport:
    reference, gradients = _reference(model)
    order = np.random.default_rng(0).permutation(ROWS)
    control = reference if cell.model in BY_POSITION else model.run(STEPS, order)
    return equality.compare(reference, run, control, gradients, tolerance=TOLERANCE[precision], metrics=())


def _reference(model: Model) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The plain run, and the gradients of all its steps by parameter."""
    assert model.gradient is not None
    plain, gradient = jax.jit(model.step), jax.jit(model.gradient)
    state, metrics, gradients = model.init(), [], []
    for seed in range(STEPS):
        batch = model.batch(seed)
        gradients.append(flat_run(gradient(state, batch), []))
        state, made = plain(state, batch)
        metrics.append(made)
    stacked = {path: np.stack([g[path] for g in gradients]) for path in gradients[0]}
    return flat_run(state, metrics), stacked


def devices_are_there() -> None:
    """Ends the process where there are not eight devices: JAX_NUM_CPU_DEVICES is read before JAX starts."""
    if len(jax.devices()) < 8:
        sys.exit(f"8 devices are needed, there are {len(jax.devices())}: set JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8")
