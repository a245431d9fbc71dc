"""A script as a user writes it, which fails as it is told: `failing.py HOW`. Only rank 1 fails, at its third step."""

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def train_step(w, x):
    loss, grad = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)
    return w - 0.1 * grad, loss


def fail(how):
    if how == "raise":
        raise ValueError("bad batch")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)


w = jnp.zeros((8, 8))
x = np.ones((4, 8), np.float32)
for step in range(2000):
    w, loss = train_step(w, x)
    print("step", step, float(loss))
    if step == 2:
        print("pid", os.getpid())
        if os.environ.get("RANK") == "1":
            fail(sys.argv[1])
    time.sleep(0.05)
