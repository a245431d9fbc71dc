"""Compiles a plan for virtual CPU devices: `python -m automap_launch.runtime.compile_plan REQUEST.json`.

In a process of its own, so that the one that asks starts no backend, and may break it off. Nothing is run and no state
is made: a step for hundreds of devices needs no more memory here than XLA for compiling it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from automap_launch.errors import PlanError
from automap_launch.plan.compiled import PLAN_REFUSED, CompiledModule, CompiledPlan, CompileRequest
from automap_launch.plan.execution import Execution
from automap_launch.plan.layout import Layout
from automap_launch.runtime.build import build_executable
from automap_launch.runtime.executable import Executable
from automap_launch.train_step import TrainStep

# Memory and collectives are decided before code is generated, and code of this process is never run.
_OPTIONS = {"xla_backend_optimization_level": 0}


def compile_plan(step: TrainStep, layout: Layout, execution: Execution) -> CompiledPlan:
    """Compiles a plan of one stage for as many devices as there are, which are its own.

    Raises:
      ValueError: it has several stages, which are modules of their own.
      PlanError: the step cannot be cut as the plan says.
    """
    executable = build_executable(step, layout, execution)
    if not isinstance(executable, Executable):
        raise ValueError(f"one stage is compiled at a time, got a plan of {execution.stages}")
    made = executable.lower().compile(_OPTIONS)
    memory = made.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    collectives = CompiledModule(made.as_text()).collectives(layout.mesh)
    return CompiledPlan(int(held + memory.temp_size_in_bytes), sum(c.size for c in collectives))


def main(path: str) -> None:
    record: dict[str, Any] = json.loads(Path(path).read_text())
    request = CompileRequest(**{**record, "execution": Execution.from_record(record["execution"])})
    step, layout = TrainStep.load(Path(request.train_step)), Layout.load(Path(request.layout))
    try:
        compiled = compile_plan(step, layout, request.execution)
    except (PlanError, jax.errors.JaxRuntimeError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        sys.exit(PLAN_REFUSED)
    Path(request.answer).write_text(json.dumps(asdict(compiled)))


if __name__ == "__main__":
    main(sys.argv[1])
