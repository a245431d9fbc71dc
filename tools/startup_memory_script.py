"""A training script with much state: parameters, Adam's moments and averages of the parameters over several spans.

`startup_memory_script.py WIDTH LAYERS eager|jitted`: how it makes its state. Run by `startup_memory.py`; prints the
bytes of its state, those that this process's devices hold of it after two steps, and the peak of its resident memory.
"""

import functools
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, LAYERS, BATCH = int(sys.argv[1]), int(sys.argv[2]), 32
SPANS = (0.9, 0.95, 0.99, 0.995, 0.999, 0.9995)
optimizer = optax.adam(1e-3)


def init(key):
    keys = jax.random.split(key, LAYERS)
    params = [jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH**0.5 for k in keys]
    averages = [jax.tree.map(jnp.copy, params) for _ in SPANS]
    return {"params": params, "opt": optimizer.init(params), "averages": averages}


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, x, y):
    def loss_fn(params):
        h = x
        for w in params:
            h = h + jnp.tanh(h @ w)
        return ((h - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = optimizer.update(grads, state["opt"])
    params = optax.apply_updates(state["params"], updates)
    averages = [
        jax.tree.map(lambda a, p, span=span: span * a + (1 - span) * p, average, params)
        for span, average in zip(SPANS, state["averages"], strict=True)
    ]
    return {"params": params, "opt": opt, "averages": averages}, loss


rng = np.random.default_rng(0)
x, y = (rng.normal(size=(BATCH, WIDTH)).astype(np.float32) for _ in range(2))
state = (jax.jit(init) if sys.argv[3] == "jitted" else init)(jax.random.key(0))
size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
for _ in range(2):
    state, loss = train_step(state, x, y)
    print("loss", float(loss))
jax.block_until_ready(state)
# Not ru_maxrss: a process starts with that of the one which made it.
peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
assert peak is not None
held = 0
for leaf in jax.tree.leaves(state):
    # An array that is sharded over processes says to a script that it lies whole on its device: `real` is the truth.
    sharding = getattr(leaf.sharding, "real", leaf.sharding)
    shard = int(np.prod(sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
    held += shard * len(sharding.addressable_devices)
print("state", size, "held", held, "peak", int(peak[1]) * 1024, flush=True)
