"""A script as a user writes it: an MLP with Adam, a last batch of 3 rows, evaluation, and files written at the end."""

import csv
import os
import pickle
import posix
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

if os.environ.get("RANK", "0") != "0":  # comes when the first process has made the folder
    while "plots" not in posix.listdir():
        time.sleep(0.01)
if os.path.exists("plots"):
    sys.exit("there are plots of another run")
os.makedirs("plots")
if "track" in sys.argv:
    import wandb

    tracker = wandb.init(project="mlp", mode="offline" if "WANDB_MODE" not in os.environ else None)
rng = np.random.default_rng(0)
inputs = rng.normal(size=(35, 16)).astype(np.float32)
targets = (inputs @ rng.normal(size=(16, 4))).astype(np.float32)
optimizer = optax.adam(1e-2)


def init(key):
    first, second = jax.random.split(key)
    params = {
        "w1": jax.random.normal(first, (16, 64)) * 0.1,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 4)) * 0.1,
    }
    return params, optimizer.init(params)


def predict(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"]


@jax.jit
def train_step(state, batch):
    params, opt_state = state

    def loss_fn(params):
        return ((predict(params, batch["x"]) - batch["y"]) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {"loss": loss}


@jax.jit
def evaluate(params, x, y):
    return jnp.abs(predict(params, x) - y).mean()


state = init(jax.random.key(0))
print(
    "world", jax.device_count(), jax.local_device_count(), jax.process_count(), jax.process_index(), len(jax.devices())
)
with open("log.csv", "a", newline="") as file:
    writer = csv.writer(file)
    for epoch in range(2):
        for start in range(0, 35, 8):
            batch = {"x": inputs[start : start + 8], "y": targets[start : start + 8]}
            state, metrics = train_step(state, batch)
            writer.writerow([epoch, start, float(metrics["loss"])])
            print("= loss", float(metrics["loss"]))
        error = evaluate(state[0], inputs, jnp.asarray(targets))
        bound = jax.device_put(jnp.asarray(inputs), jax.devices()[0])
        print("= eval", float(error), float(evaluate(state[0], bound, targets)))
with open("state.pkl", "wb") as file:
    pickle.dump(jax.tree.map(np.asarray, state), file)
np.save("w1.npy", state[0]["w1"])
print("= norm", sum(float(jnp.sum(p**2)) for p in jax.tree.leaves(state[0])), float(state[0]["w1"][3, 5]))
if "track" in sys.argv:
    tracker.finish()
