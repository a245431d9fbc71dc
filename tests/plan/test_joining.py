"""Reductions that run as one, against what XLA's combiner makes of them."""

from __future__ import annotations

from collections import Counter

import jax
import pytest

from automap_launch.plan.compiled import CompiledModule
from automap_launch.plan.cost import CostModel
from automap_launch.plan.joining import waits_of
from automap_launch.plan.sharding import mesh_of
from automap_launch.program.analyse import analyse
from tests.plan.hlo import compile_plan
from tests.plan.models import transformer
from tests.plan.partitioned import decision_of
from tests.plan.programs import Builder, cluster


def test_sums_that_do_not_need_each_other_share_a_wait():
    b = Builder()
    batch, hidden, stream = (b.group(k) for k in ("batch", "parameter", "parameter"))
    weights = [b.argument(f"params/w{k}", (16, 8), (hidden, stream), parameter=True) for k in range(3)]
    x = b.argument("batch/x", (4, 16), (batch, hidden), role="batch")
    sums = []
    for weight in weights[:2]:
        sums.append(b.value((4, 8), (batch, stream)))
        b.op("dot_general", (x, weight), (sums[-1],), contracted=((0, 1), (1, 0)))
    y, back, last = (
        b.value((4, 8), (batch, stream)),
        b.value((4, 16), (batch, hidden)),
        b.value((4, 8), (batch, stream)),
    )
    b.op("add", tuple(sums), (y,), fusable=True)
    b.op("dot_general", (y, weights[2]), (back,), contracted=((0, 1), (1, 1)))
    b.op("dot_general", (back, weights[2]), (last,), contracted=((0, 1), (1, 0)))
    b.result(last)
    # Two sums over `hidden` at once, one over `stream`, and a second one over `hidden` that needs them all.
    assert waits_of(b.program()) == [0.5, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: JAX_NUM_CPU_DEVICES=8")
def test_as_many_waits_as_xla_has_all_reduces():
    program = analyse(transformer())
    decision = decision_of(program, "tensor parallel")
    compiled = CompiledModule(compile_plan(program, decision).as_text()).collectives(mesh_of(decision))
    real = Counter(collective.kind for collective in compiled)
    (use,) = CostModel(program, cluster()).breakdown(decision).collectives
    assert use.kind == "all_reduce"
    assert use.count == real["all_reduce"]
