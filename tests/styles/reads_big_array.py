"""Refused while capturing: the value of a big array (64 MiB) is read before the first step."""

import common
import jax
import jax.numpy as jnp
import optax

HIDDEN = 512 * 1024


def loss_fn(params, x, y):
    logits = jax.nn.relu(x @ params["wide"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), loss


args = common.parser().parse_args()
key_1, key_2 = jax.random.split(jax.random.key(0))
params = {
    "wide": jax.random.normal(key_1, (common.FEATURES, HIDDEN)) * 0.1,
    "out": jax.random.normal(key_2, (HIDDEN, common.CLASSES)) * HIDDEN**-0.5,
}
print(f"norm of the widest layer: {float(jnp.linalg.norm(params['wide'])):.1f}")
first_row = params["wide"][0].tolist()
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, loss = train_step(params, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
