"""A script whose state is larger than the limit above which it is created in place; it saves, restores and moves it."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.adam(1e-2)


def init(key):
    params = {"w1": jax.random.normal(key, (64, 512)) * 0.1, "w2": jnp.zeros((512, 8)), "b": jnp.zeros(8)}
    return {"params": params, "opt": optimizer.init(params), "step": 0, "key": jax.random.key(3)}


@functools.partial(jax.jit, static_argnames=("train",), donate_argnums=0)
def train_step(state, x, y, train=True):
    key, dropout = jax.random.split(state["key"])

    def loss_fn(params):
        hidden = jnp.tanh(x @ params["w1"])
        if train:
            hidden = jnp.where(jax.random.bernoulli(dropout, 0.9, hidden.shape), hidden / 0.9, 0)
        return ((hidden @ params["w2"] + params["b"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt, "step": state["step"] + 1, "key": key}, loss


@jax.jit
def evaluate(params, x):
    return jnp.tanh(x @ params["w1"]).mean()


rng = np.random.default_rng(0)
x, y = rng.normal(size=(16, 64)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
held_out = jnp.asarray(rng.normal(size=(512, 64)).astype(np.float32))
state = init(jax.random.key(0))
print("= norm", float(jnp.linalg.norm(state["params"]["w1"])))
print("= evaluated before training", float(evaluate(state["params"], held_out)))
for _ in range(2):
    state, loss = train_step(state, x, y)
    print("= loss", float(loss), "step", int(state["step"]))
for name in ("params", "opt"):
    for leaf in jax.tree.leaves(state[name]):
        # What JAX itself holds: to the script, an array lies whole on its one device.
        print(name, leaf.shape, leaf._arrays[0].shape, len(leaf._arrays))
state, loss = train_step(state, x, y, train=False)
print("= without dropout", float(loss))

numbers = jax.tree.map(np.asarray, {name: state[name] for name in ("params", "opt", "step")})
restored = pickle.loads(pickle.dumps(numbers))
state, loss = train_step({**restored, "key": state["key"]}, x, y)
print("= restored from numpy", float(loss), "step", int(state["step"]))
state, loss = train_step(jax.device_put(state, jax.devices()[0]), jnp.asarray(x), jax.device_put(y))
print("= put on the device", float(loss))
print("= evaluated after training", float(evaluate(state["params"], held_out)), float(held_out.sum()))
