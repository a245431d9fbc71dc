"""A training script with all that scripts do with their state: `full_training.py [donate] [resume]`.

`resume`: goes on from the checkpoints that a run without it has left in the working folder.
"""

import functools
import pickle
import sys
from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

DONATE = "donate" in sys.argv
LAYERS = 8
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam())
schedule = optax.cosine_decay_schedule(1e-2, 20)


def init(key):
    keys = jax.random.split(key, LAYERS)
    params = [{"w": jax.random.normal(k, (16, 16)) / 4, "b": jnp.zeros(16)} for k in keys]
    return {"params": params, "opt": optimizer.init(params), "step": 0, "key": jax.random.key(1)}


def predict(params, x):
    for layer in params[:-1]:
        x = x + jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


@functools.partial(jax.jit, donate_argnums=(0,) if DONATE else ())
def train_step(state, batch, scale):
    key, noise_key = jax.random.split(state["key"])

    def loss_fn(params):
        noise = 0.1 * jax.random.normal(noise_key, batch["x"].shape)
        return ((predict(params, batch["x"] + noise) - batch["y"]) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = optimizer.update(grads, state["opt"])
    rate = -scale * schedule(state["step"])
    params = optax.apply_updates(state["params"], jax.tree.map(lambda u: rate * u, updates))
    new = {"params": params, "opt": opt, "step": state["step"] + 1, "key": key}
    return new, {"loss": loss, "norm": optax.global_norm(grads), "rate": rate}


@jax.jit
def evaluate(params, x, y):
    return jnp.abs(predict(params, x) - y).mean()


@jax.jit
def second_step(params, x, y):
    """Another training step, of another kind of loss."""
    loss, grads = jax.value_and_grad(lambda p: jnp.abs(predict(p, x) - y).mean())(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def show(name, *numbers):
    print("=", name, *(float(number) for number in numbers))


def checksum(tree):
    return sum(float(np.abs(np.asarray(leaf)).sum()) for leaf in jax.tree.leaves(tree))


rng = np.random.default_rng(0)
inputs = rng.normal(size=(38, 16)).astype(np.float32)
targets = (inputs @ rng.normal(size=(16, 16)) / 4).astype(np.float32)
state = init(jax.random.key(0))
if "resume" in sys.argv:
    kept = {name: state[name] for name in ("params", "opt", "step")}
    with ocp.StandardCheckpointer() as checkpointer:
        from_orbax = {"key": state["key"], **checkpointer.restore(Path("checkpoint").absolute(), kept)}
    from_flax = {**state, **flax.serialization.from_bytes(kept, Path("state.msgpack").read_bytes())}
    for name, restored in (("Orbax", from_orbax), ("Flax", from_flax)):
        show(f"restored by {name}", checksum(restored["params"]), checksum(restored["opt"]), restored["step"])
        state = jax.tree.map(jnp.copy, restored)
        for start in range(0, 38, 16):
            batch = {"x": inputs[start : start + 16], "y": targets[start : start + 16]}
            state, metrics = train_step(state, batch, 1.0)
            show("resumed", metrics["loss"], metrics["rate"], evaluate(state["params"], inputs, targets))
        show("went on to", checksum(state["params"]), checksum(state["opt"]), state["step"])
    sys.exit()
average = jax.tree.map(jnp.copy, state["params"])
best, patience = float("inf"), 3
for epoch in range(3):
    for start in range(0, 38, 16):  # the last batch has 6 rows
        batch = {"x": inputs[start : start + 16], "y": targets[start : start + 16]}
        old = state
        state, metrics = train_step(state, batch, 1.0 / (1 + epoch))
        show("step", metrics["loss"], metrics["norm"], metrics["rate"], state["step"])
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, state["params"])
        if not DONATE:
            show("old", checksum(old["params"]), old["step"])
    error = float(evaluate(state["params"], inputs, targets))
    show("evaluated", error, evaluate(average, jnp.asarray(inputs), targets))
    best, patience = (error, 3) if error < best else (best, patience - 1)
    if patience == 0:
        break
print("= early stopping", patience)

# Eager code over parameters of several stages
params = state["params"]
show("eager", jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))), optax.global_norm(params))
show("stacked", jnp.stack([layer["w"] for layer in params]).mean(), params[0]["w"][3, 5], params[7]["b"].max())
show("forward", predict(params, inputs).mean())
show("gradient", optax.global_norm(jax.grad(lambda p: predict(p, inputs).sum())(params)))

# Out and in again
numbers = jax.device_get({**state, "key": jax.random.key_data(state["key"])})
show("device_get", checksum(numbers))
blob = flax.serialization.to_bytes({"params": params, "opt": state["opt"]})
whole = flax.serialization.to_bytes({"params": params, "opt": state["opt"], "step": state["step"]})
Path("state.msgpack").write_bytes(whole)
restored = flax.serialization.from_bytes({"params": params, "opt": state["opt"]}, blob)
show("flax", checksum(restored))
pickled = pickle.loads(pickle.dumps({"params": params, "opt": state["opt"], "step": int(state["step"])}))
show("pickle", checksum(pickled))
copied = jax.tree.map(jnp.copy, state)
batch = {"x": inputs[:16], "y": targets[:16]}
for name, saved in (("flax", restored), ("pickle", pickled)):
    resumed, metrics = train_step({**jax.tree.map(jnp.copy, copied), **saved}, batch, 1.0)
    show(f"from {name}", metrics["loss"], checksum(resumed["params"]))

folder = Path("checkpoint").absolute()
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, {"params": params, "opt": state["opt"], "step": state["step"]})
    checkpointer.wait_until_finished()
    like = {"params": copied["params"], "opt": copied["opt"], "step": copied["step"]}
    from_target = checkpointer.restore(folder, like)
    plain = checkpointer.restore(folder)
show("orbax", checksum(from_target), checksum(plain))
resumed, metrics = train_step({**jax.tree.map(jnp.copy, copied), **from_target}, batch, 1.0)
show("from orbax", metrics["loss"], checksum(resumed["params"]), resumed["step"])

# Another step on the same parameters, and back to the first
tuned, loss = second_step(params, inputs, targets)
tuned, again = second_step(tuned, inputs, targets)
show("second step", loss, again, checksum(tuned))
state, metrics = train_step({**copied, "params": tuned}, batch, np.float32(0.5))
show("back", metrics["loss"], checksum(state["params"]))
