"""Predictions against XLA: bytes of each kind of collective in the compiled module of the plan, and state in memory."""

from __future__ import annotations

from functools import cache

import jax
import pytest

from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.program.analyse import analyse
from tests.plan.hlo import collective_bytes, compile_plan
from tests.plan.models import mlp, transformer
from tests.plan.programs import cluster

# Collectives that XLA adds for some bytes of indices (a label pick on a sharded batch) are not foreseen.
_NOISE_BYTES = 2048

MODELS = {"mlp": mlp, "transformer": transformer}
DIMS = {
    "hidden": ("params/0/w", 1),
    "second": ("params/1/w", 1),
    "heads": ("params/layers/0/q", 1),
    "d_ff": ("params/layers/0/wi", 1),
    "vocab": ("params/embedding", 0),
    "d_model": ("params/norm", 0),
}


@cache
def program_of(model):
    return analyse(MODELS[model]())


def decide(program, data, model, names, storage="none"):
    place = {argument.path: value for argument, value in zip(program.step.arguments, program.arguments, strict=True)}
    groups = {program.dim_groups[place[DIMS[name][0]]][DIMS[name][1]] for name in names}
    return Decision(data, model, frozenset(groups), storage)


CASES = [
    ("mlp", 8, 1, (), "none"),
    ("mlp", 1, 8, ("hidden",), "none"),
    ("mlp", 4, 2, ("second",), "none"),
    ("mlp", 8, 1, (), "optimizer"),
    ("transformer", 8, 1, (), "none"),
    ("transformer", 1, 8, ("heads", "d_ff"), "none"),
    ("transformer", 4, 2, ("heads", "d_ff", "vocab"), "none"),
    ("transformer", 1, 8, ("d_model",), "none"),
    ("transformer", 8, 1, (), "state"),
]


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: JAX_NUM_CPU_DEVICES=8")
@pytest.mark.parametrize(("model", "data", "tensor", "names", "storage"), CASES)
def test_bytes_of_every_kind_of_collective(model, data, tensor, names, storage):
    program = program_of(model)
    decision = decide(program, data, tensor, names, storage)
    cost = CostModel(program, cluster())
    compiled = compile_plan(program, decision)
    real = collective_bytes(compiled, decision)
    predicted = {(use.kind, use.axis): use.bytes for use in cost.breakdown(decision).collectives}
    for key in real.keys() | predicted.keys():
        assert predicted.get(key, 0) == pytest.approx(real.get(key, 0), rel=0.02, abs=_NOISE_BYTES), key
    memory = cost.estimate(decision).memory
    state = memory.parameters + memory.optimizer
    batch = sum(program.values[v].bytes for v in program.arguments) / data
    assert state == pytest.approx(compiled.memory_analysis().alias_size_in_bytes, rel=0.03)
    held = compiled.memory_analysis()
    assert state <= held.argument_size_in_bytes <= state + batch
    whole = held.argument_size_in_bytes + held.output_size_in_bytes - held.alias_size_in_bytes + held.temp_size_in_bytes
    assert memory.total == pytest.approx(whole, rel=0.2)
    counted = compiled.cost_analysis()["flops"] + compiled.cost_analysis()["transcendentals"]
    assert cost.breakdown(decision).flops == pytest.approx(counted, rel=0.05)
