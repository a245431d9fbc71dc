"""A peer of `bench_pipeline.py` in a process of its own: the same model under SpectraX (PyPI: `spectrax-lib`).

    PYTHON_OF_ANOTHER_ENVIRONMENT tools/pipeline_spectrax.py STAGES MICRO_BATCHES SCHEDULE LAYERS WIDTH ROWS

Its environment needs `pip install spectrax-lib jax==0.10.2`, and nothing of ours. It prints the loss of its first
step, then runs as many steps as each line of its input says and prints the seconds that they took.
"""

from __future__ import annotations

import os
import sys
import time

STAGES, MICRO_BATCHES = int(sys.argv[1]), int(sys.argv[2])
SCHEDULE = sys.argv[3]
LAYERS, WIDTH, ROWS = (int(argument) for argument in sys.argv[4:7])
RATE = 0.05
os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_NUM_CPU_DEVICES=str(STAGES),
    XLA_FLAGS="--xla_cpu_multi_thread_eigen=false",
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import spectrax as spx  # noqa: E402
from spectrax.runtime.mpmd import sxjit, sxstage_iter, sxvalue_and_grad  # noqa: E402
from spectrax.runtime.schedules import GPipe, Std1F1B, ZeroBubbleH1  # noqa: E402

SCHEDULES = {"gpipe": GPipe, "1f1b": Std1F1B, "zero_bubble": ZeroBubbleH1}


def main() -> None:
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype("f") for _ in range(LAYERS)]
    x, target = (rng.normal(size=(ROWS, WIDTH)).astype("f") for _ in range(2))
    each = LAYERS // STAGES
    weights = [jax.device_put(w, jax.devices()[i // each]) for i, w in enumerate(layers)]
    mesh = spx.create_mesh(axis_dims=(STAGES, 1, 1, 1, 1, 1), mpmd_axis="pp")

    def loss(weights, x, target):
        for i, w in enumerate(weights):
            if i and i % each == 0:
                x = sxstage_iter(x)
            x = jnp.tanh(x @ w)
        return ((x - target) ** 2).mean()

    schedule = SCHEDULES[SCHEDULE](MICRO_BATCHES)
    value_and_grad = sxvalue_and_grad(sxjit(loss, mesh=mesh, schedule=schedule, batch_argnums=(1, 2)))
    update = jax.jit(lambda w, g: [a - RATE * b for a, b in zip(w, g, strict=True)], donate_argnums=0)

    def step(weights):
        value, (gradients,) = value_and_grad(weights, x, target)
        new = []
        for begin in range(0, LAYERS, each):  # a stage's update on its own device
            new += update(weights[begin : begin + each], list(gradients[begin : begin + each]))
        return new, value

    weights, value = step(weights)
    print("loss", float(value), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            weights, value = step(weights)
        jax.block_until_ready((weights, value))
        print("seconds", time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
