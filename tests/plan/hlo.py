"""Collectives in a compiled module: what XLA really does, to hold predictions against."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.program.program import Program
from automap_launch.runtime.executable import Executable
from automap_launch.runtime.mesh import make_mesh

_ITEM = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_NAMES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
}
_INSTRUCTION = re.compile(rf"= (.*?) ({'|'.join(_NAMES)})(?:-start)?\(")


def compile_plan(program: Program, decision: Decision) -> Any:
    """The step compiled for the devices at hand under a decision."""
    layout = derive_layout(program, decision)
    step = program.step
    executable = Executable(step.modules["cpu"], step.arguments, step.results, layout, make_mesh(layout.mesh))
    return executable.lower().compile()


def collectives(text: str, decision: Decision) -> dict[tuple[str, str], tuple[int, int]]:
    """(count, bytes of the result) of a module's collectives by (kind, axis)."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for line in text.splitlines():
        match = _INSTRUCTION.search(line)
        if not match:
            continue
        size = sum(
            _ITEM[dtype] * math.prod(int(n) for n in dims.split(",") if n)
            for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", match[1])
        )
        entry = found[_NAMES[match[2]], _axis(line, decision)]
        entry[0] += 1
        entry[1] += size
    return {key: (count, size) for key, (count, size) in found.items()}


def _axis(line: str, decision: Decision) -> str:
    """Which mesh axis a collective runs over, from its replica groups."""
    mesh = re.search(r"replica_groups=mesh\[(.*?)\]\s*\{(.*?)\}", line)
    if mesh:
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        names = re.findall(r"'(\w+)'", mesh[2])
        size = math.prod(sizes[name] for name in names)
        minor = list(sizes)[-1] in names
    else:
        listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
        iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](T)?", line)
        if listed:
            ids = [int(i) for i in listed[1].split(",")]
            size, minor = len(ids), len(ids) < 2 or ids[1] - ids[0] == 1
        elif iota:
            size, minor = int(iota[2]), iota[4] is None
        else:
            return "permute"
    if size == decision.devices:
        return "data" if decision.model == 1 else "model" if decision.data == 1 else "data+model"
    return "model" if minor else "data"
