"""A script that ends in the way its argument says."""

import atexit
import sys

import jax
import jax.numpy as jnp
import numpy as np

how = sys.argv[1] if len(sys.argv) > 1 else "well"
atexit.register(lambda: print("exit handler ran"))
unflushed = open("unflushed.txt", "w")  # noqa: SIM115  # left open, as scripts do
unflushed.write("written")
if how == "raise early":
    raise ValueError("bad config")


@jax.jit
def train_step(w, x):
    return w - 0.1 * x.mean(0), (w * x).sum()


w = jnp.ones(4)
for _ in range(3):
    w, loss = train_step(w, np.ones((8, 4), np.float32))
if how == "raise":
    {}["missing"]
sys.exit({"exit 0": 0, "exit 3": 3, "exit message": "no good"}.get(how))
