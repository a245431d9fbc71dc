"""A script that saves with Orbax's checkpoint manager at every step, and goes on from what it restored."""

from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

optimizer = optax.adam(1e-2)


@jax.jit
def train_step(state, x):
    loss, grads = jax.value_and_grad(lambda params: ((x @ params["w"]) ** 2).mean())(state["params"])
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "step": state["step"] + 1}, loss


params = {"w": jax.random.normal(jax.random.key(0), (8, 16))}
state = {"params": params, "opt": optimizer.init(params), "step": 0}
x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
manager = ocp.CheckpointManager(Path("checkpoints").absolute(), options=options)
for step in range(4):
    state, loss = train_step(state, x)
    print("= loss", float(loss))
    manager.save(step, args=ocp.args.StandardSave({"state": state, "seen": np.arange(3)}))
manager.wait_until_finished()
print("= kept", *sorted(manager.all_steps()))
target = {"state": state, "seen": np.arange(3)}
restored = manager.restore(3, args=ocp.args.StandardRestore(target))
print("= from a target", float(train_step(restored["state"], x)[1]))
without_target = manager.restore(3)["state"]["params"]
print("= without a target", float(train_step({**state, "params": without_target}, x)[1]))
