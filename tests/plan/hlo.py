"""A plan, compiled: what XLA really does, to hold predictions against."""

from __future__ import annotations

from collections import Counter
from typing import Any

from automap_launch.plan.compiled import CompiledModule
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.sharding import mesh_of
from automap_launch.program.program import Program
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh


def compile_plan(program: Program, decision: Decision) -> Any:
    """The step compiled for the devices at hand under a decision."""
    layout = derive_layout(program, decision)
    step = program.step
    executable = Executable(step.modules["cpu"], step.arguments, step.results, layout, make_mesh(layout.mesh))
    return executable.lower().compile()


def collective_bytes(compiled: Any, decision: Decision) -> dict[tuple[str, str], int]:
    """Bytes of a compiled module's collectives by (kind, axis)."""
    sizes: Counter[tuple[str, str]] = Counter()
    for collective in CompiledModule(compiled.as_text()).collectives(mesh_of(decision)):
        sizes[collective.kind, collective.axis] += collective.size
    return dict(sizes)
