"""A script as a user writes it, which fails as it is told: `failing.py HOW`. Only rank 1 fails, at its third step."""

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def train_step(weights, x):
    def loss_fn(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return ((h - 1) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], loss


def fail(how):
    print("fails at", time.time(), flush=True)
    if how == "raise":
        raise ValueError("bad batch")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)


weights = [jnp.eye(8) / 2] * 4
x = np.ones((4, 8), np.float32)
for step in range(2000):
    weights, loss = train_step(weights, x)
    print("step", step, float(loss))
    if step == 2:
        print("pid", os.getpid())
        if os.environ.get("RANK") == "1":
            fail(sys.argv[1])
    time.sleep(0.05)
