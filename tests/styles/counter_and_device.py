"""Style: a Python number counts the steps, each batch is put on a device by name, results go to a new folder."""

import os

import common
import jax
from classifier import init_params, loss_fn


@jax.jit
def train_step(state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], x, y)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
    return {"params": params, "step": state["step"] + 1}, loss


args = common.parser().parse_args()
dump = args.dump and os.path.abspath(args.dump)
os.makedirs("results", exist_ok=True)
os.chdir("results")
device = jax.devices()[0]
state = {"params": jax.device_put(init_params(jax.random.key(0)), device), "step": 0}
losses = []
for batch in common.batches(args.steps, permute=args.permute_rows):
    x, y = jax.device_put(batch, device)
    state, loss = train_step(state, x, y)
    losses.append(loss)
# A Python number takes the other operand's dtype, and so does what is computed from it.
assert (state["step"] * jax.numpy.ones((), jax.numpy.int8)).dtype == jax.numpy.int8
common.dump(dump, common.print_losses(losses), state)
