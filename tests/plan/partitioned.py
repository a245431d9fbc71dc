"""Modules as the SPMD partitioner leaves them, before any backend's passes: what a GPU's compiler is given, too.

`python -m tests.plan.partitioned FOLDER` compiles the transformer under each case of `CASES`; the variable XLA_FLAGS
makes XLA write every partitioned module into the folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from automap_launch.plan.decision import Decision, Storage
from automap_launch.program.program import Program
from tests.plan.models import transformer

# Data parallelism, its ZeRO forms, tensor parallelism over inner dims, and both together.
CASES: dict[str, tuple[int, int, Storage]] = {
    "data parallel": (8, 1, "none"),
    "ZeRO, optimizer": (8, 1, "optimizer"),
    "ZeRO, state": (8, 1, "state"),
    "tensor parallel": (1, 8, "none"),
    "data and tensor parallel": (4, 2, "none"),
}
_INNER = (("params/layers/0/q", 1), ("params/layers/0/wi", 1))
_PASS = "after_spmd-partitioning"
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\S+) ([\w\-]+)\((.*)$", re.MULTILINE)


def decision_of(program: Program, name: str) -> Decision:
    data, model, storage = CASES[name]
    place = {argument.path: value for argument, value in zip(program.step.arguments, program.arguments, strict=True)}
    groups = {program.dim_groups[place[path]][dim] for path, dim in _INNER} if model > 1 else set()
    assert None not in groups
    return Decision(data, model, frozenset(g for g in groups if g is not None), storage)


def partitioned_modules(folder: Path) -> dict[str, str]:
    """The text of each case's partitioned module."""
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_pass_re=spmd.* {os.environ.get('XLA_FLAGS', '')}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    subprocess.run([sys.executable, "-m", "tests.plan.partitioned"], env=environment, check=True, timeout=300)
    found = sorted(path for path in folder.glob(f"*jit_train_step*{_PASS}*.txt"))
    return dict(zip(CASES, (path.read_text() for path in found), strict=True))


def with_reduce_scatters(text: str) -> str:
    """The module after what XLA's GPU compiler does first: an all-reduce of which every user takes this device's slice
    becomes a reduce-scatter (`ReduceScatterCreator`)."""
    users: dict[str, list[tuple[str, str]]] = {}
    for _, shape, opcode, rest in _INSTRUCTION.findall(text):
        for operand in re.findall(r"%([\w.\-]+)", rest.split("), ")[0]):
            users.setdefault(operand, []).append((opcode, shape))

    def created(found: re.Match[str]) -> str:
        name, shape, opcode, _ = found.groups()
        uses = users.get(name, [])
        if opcode != "all-reduce" or not uses or any(use != "dynamic-slice" for use, _ in uses):
            return found[0]
        return found[0].replace(f"{shape} all-reduce(", f"{uses[0][1]} reduce-scatter(", 1)

    return _INSTRUCTION.sub(created, text)


def main() -> None:
    from automap_launch.program.analyse import analyse
    from tests.plan.hlo import compile_plan

    program = analyse(transformer())
    for name in CASES:
        compile_plan(program, decision_of(program, name))


if __name__ == "__main__":
    main()
