"""Style: `@functools.partial(jax.jit, static_argnames=...)` as the decorator."""

import functools

import classifier
import common
import jax
import optax


@functools.partial(jax.jit, static_argnames=("clip", "learning_rate"), donate_argnames="params")
def train_step(params, x, y, learning_rate, clip=None):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    if clip is not None:
        scale = jax.numpy.minimum(1.0, clip / optax.global_norm(grads))
        grads = jax.tree.map(lambda g: g * scale, grads)
    return jax.tree.map(lambda p, g: p - learning_rate * g, params, grads), loss


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, loss = train_step(params, x, y, learning_rate=0.1, clip=1.0)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
