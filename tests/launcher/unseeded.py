"""A script with a different state, batch, key, or step, on each rank."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

rank = int(os.environ.get("RANK", "0"))
scale = rank if "program" in sys.argv else 1.0
state = {"w": jnp.ones(4), "b": jnp.full(4, float(rank)) if "state" in sys.argv else jnp.zeros(4)}


@jax.jit
def train_step(state, x, key):
    x = x + 0 * jax.random.normal(key, x.shape)
    return jax.tree.map(lambda p: p - 0.1 * scale * x.mean(0), state), (state["w"] * x).sum()


for _ in range(2):
    rows = np.full((8, 4), 1.0 + rank if "batch" in sys.argv else 1.0, np.float32)
    state, loss = train_step(state, rows, jax.random.key(rank if "key" in sys.argv else 0))
