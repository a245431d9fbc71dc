"""Compiles sample steps over 8 CPU devices with the shardings that groups imply, and prints what XLA inserts.

Run as `python -m tests.program.partitioned` (the devices must be set before JAX starts); prints one JSON record a case.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter

os.environ.update(JAX_NUM_CPU_DEVICES="8", JAX_PLATFORMS="cpu")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.program.analyse import analyse
from automap_launch.program.program import ITEM_BYTES, Program
from tests.program import models
from tests.program.conftest import make_step
from tests.program.rule_cases import RULE_CASES

MESH = {"data": 4, "model": 2}
HLO_NAMES = {"f32": "float32", "s32": "int32", "u32": "uint32", "pred": "bool"}
HLO_BYTES = {name: ITEM_BYTES[dtype] for name, dtype in HLO_NAMES.items()}

BATCH = ("2", 0, "data")
TOKENS = ("2/tokens", 0, "data")
HEADS, HIDDEN = ("0/layers/0/q", 1, "model"), ("0/layers/0/up", 1, "model")
STACKED_HEADS, STACKED_HIDDEN = ("0/layers/q", 2, "model"), ("0/layers/up", 2, "model")
VOCABULARY, MODEL = ("0/embed", 0, "model"), ("0/norm", 0, "model")
CASES = {
    "mlp columns then rows": (models.mlp(), [BATCH, ("0/0/w", 1, "model"), ("0/2/w", 1, "model")]),
    "mlp input features": (models.mlp(), [BATCH, ("0/0/w", 0, "model")]),
    "lm data": (models.language_model(), [TOKENS]),
    "lm data, tensor, vocabulary": (models.language_model(), [TOKENS, HEADS, HIDDEN, VOCABULARY]),
    "lm residual stream": (models.language_model(), [TOKENS, MODEL]),
    "lm scanned": (models.language_model(3, scan=True), [TOKENS, STACKED_HEADS, STACKED_HIDDEN, VOCABULARY]),
    "lm scanned, recomputed": (models.language_model(3, scan=True, remat=True), [TOKENS, STACKED_HIDDEN]),
    "cnn data, channels": (models.convolutional(), [BATCH, ("0/conv1", 3, "model")]),
    "rnn data": (models.recurrent(), [BATCH]),
    **{f"rule: {name}": case for name, case in RULE_CASES.items()},
}


def sharding_of(program: Program, value: int, axes: dict[int | None, str]) -> list[str | None]:
    out: list[str | None] = []
    for group, size in zip(program.dim_groups[value], program.values[value].shape, strict=True):
        axis = axes.get(group)
        out.append(axis if axis and axis not in out and size % MESH[axis] == 0 else None)
    return out


def foreseen(program: Program, axes: dict[int | None, str]) -> Counter[str]:
    """Bytes of the all-reduces that contracted dims call for, a loop's body counted once as in XLA's text."""
    out: Counter[str] = Counter()
    for op in program.ops:
        partial = {sharding_of(program, op.operands[k], axes)[d] for k, d in op.contracted} - {None}
        for axis in partial:
            local = 0
            for value in op.results:
                local += program.values[value].bytes // math.prod(
                    MESH[a] for a in sharding_of(program, value, axes) if a
                )
            out[axis] += local
    return out


def inserted(text: str) -> Counter[str]:
    """Bytes of XLA's collectives, by `axis` for all-reduces and `kind axis` for any other."""
    out: Counter[str] = Counter()
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    for line in text.splitlines():
        found = re.search(rf"= (.*?) ({kinds})(-start)?\(", line)
        if not found:
            continue
        size = sum(
            HLO_BYTES[dtype] * math.prod(int(n) for n in shape.split(",") if n)
            for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", found[1])
        )
        axis = {8: "all", 4: "data", 2: "model"}.get(_devices(line), "?")
        out[axis if found[2] == "all-reduce" else f"{found[2]} {axis}"] += size
    return out


def _devices(line: str) -> int:
    """How many devices take part in one group of a collective; XLA writes groups in three ways."""
    if named := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(iota[1])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed[1].split(","))
    return 0


def main() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(*MESH.values()), tuple(MESH))
    for name, ((function, state, batch), choices) in CASES.items():
        step = make_step(function, state, *batch)
        program = analyse(step)
        paths = [a.path for a in step.arguments]
        axes = {program.dim_groups[program.arguments[paths.index(path)]][dim]: axis for path, dim, axis in choices}
        if None in axes or len(axes) != len(choices):
            raise ValueError(f"{name}: a choice names no group of its own, {axes}")
        arguments = [NamedSharding(mesh, PartitionSpec(*sharding_of(program, v, axes))) for v in program.arguments]
        results = [
            NamedSharding(mesh, PartitionSpec(*(sharding_of(program, v, axes) if r.replaces is not None else ())))
            for v, r in zip(program.results, step.results, strict=True)
        ]
        structure = jax.tree.structure((*state, *batch))
        out_structure = jax.tree.structure(jax.eval_shape(function, *state, *batch))
        compiled = (
            jax.jit(
                function,
                in_shardings=jax.tree.unflatten(structure, arguments),
                out_shardings=jax.tree.unflatten(out_structure, results),
            )
            .lower(*state, *batch)
            .compile()
        )
        record = {"name": name, "foreseen": foreseen(program, axes), "inserted": inserted(compiled.as_text())}
        json.dump(record, sys.stdout)
        print(flush=True)


if __name__ == "__main__":
    main()
