"""Work that fused loops do anew, against the operations that XLA counts in what it compiles for a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from automap_launch.plan.fusing import copies_of
from automap_launch.program.analyse import analyse
from tests.plan.programs import Builder
from tests.program.conftest import make_step

SHAPE = (32, 8, 8, 64)
ABSTRACT = (
    jax.ShapeDtypeStruct(SHAPE, jnp.float32),
    jax.ShapeDtypeStruct(SHAPE[-1:], jnp.float32),
    jax.ShapeDtypeStruct(SHAPE, jnp.float32),
)
ALL = (0, 1, 2)
# What is made of x, s and y, and the results that are made of that.
STEPS = {
    "two loops": (lambda x, s, y: jnp.abs(x - s), lambda d, s, y: (d * y, jnp.maximum(d, 0.5))),
    "a loop and a reduction": (lambda x, s, y: x - s, lambda d, s, y: ((d * y).sum(ALL), jnp.maximum(d, 0.5))),
    "two reductions": (lambda x, s, y: x - s, lambda d, s, y: ((d * y).sum(ALL), (jnp.maximum(d, 0.0) * y).sum(ALL))),
    "a chain": (lambda x, s, y: (x - s) * s, lambda d, s, y: ((d * y).sum(ALL), jnp.maximum(d + s, 0.5))),
    "a result and a loop": (lambda x, s, y: x - s, lambda d, s, y: (d, jnp.maximum(d, 0.5))),
    "two tensors, two loops": (lambda x, s, y: x * y, lambda d, s, y: (jnp.abs(d), jnp.maximum(d, 0.5))),
    "two tensors, a result": (lambda x, s, y: x * y, lambda d, s, y: (d, jnp.maximum(d, 0.5))),
    "two tensors, a reduction": (lambda x, s, y: x * y, lambda d, s, y: (d.sum(ALL), jnp.maximum(d, 0.5))),
    "a division": (lambda x, s, y: x / y, lambda d, s, y: (jnp.abs(d), jnp.maximum(d, 0.5))),
    "a product": (lambda x, s, y: x - s, lambda d, s, y: (d @ jnp.ones((64, 4)), jnp.maximum(d, 0.5))),
}


@pytest.mark.parametrize("name", STEPS)
def test_xla_does_the_work_as_often(name):
    shared, results = STEPS[name]

    def step(x, s, y):
        return results(shared(x, s, y), s, y)

    program = analyse(make_step(step, (), *ABSTRACT))
    ours = sum(op.flops * copies for op, copies in zip(program.ops, copies_of(program), strict=True))
    assert ours == pytest.approx(jax.jit(step).lower(*ABSTRACT).compile().cost_analysis()["flops"], rel=0.03)


def test_what_a_loop_reads_round_after_round_is_done_once():
    b = Builder()
    x, own, result = (b.value((64, 32), (None, None)) for _ in range(3))
    b.op("negate", (x,), (own,), fusable=True)
    b.op("abs", (own,), (result,), fusable=True, times=3)
    b.result(result)
    assert copies_of(b.program()) == [1, 1]
