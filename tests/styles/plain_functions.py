"""Style: parameters in a pytree, pure functions, `@jax.jit`, gradient descent by `jax.tree.map` inside the step."""

import common
import jax
import jax.numpy as jnp


def init_layers(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) * (2.0 / m) ** 0.5, "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def predict(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_fn(params, x, y):
    log_probs = jax.nn.log_softmax(predict(params, x))
    return -jnp.mean(jnp.take_along_axis(log_probs, y[:, None], axis=-1))


@jax.jit
def update(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


args = common.parser().parse_args()
params = init_layers(jax.random.PRNGKey(0), [common.FEATURES, 64, 64, common.CLASSES])
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, loss = update(params, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
