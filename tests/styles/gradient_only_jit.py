"""Style: `jit(value_and_grad(loss))`, and gradient descent by an eager `jax.tree.map`."""

import classifier
import common
import jax

value_and_grad = jax.jit(jax.value_and_grad(classifier.loss_fn))
LEARNING_RATE = 0.1

args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    loss, grads = value_and_grad(params, x, y)
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
