"""Style: the learning rate is computed in Python and passed to the step, as a float."""

import math

import classifier
import common
import jax


@jax.jit
def train_step(params, x, y, learning_rate):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - learning_rate * g, params, grads), loss


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
losses = []
for step, (x, y) in enumerate(common.batches(args.steps, permute=args.permute_rows)):
    learning_rate = 0.1 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
    params, loss = train_step(params, x, y, learning_rate)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
