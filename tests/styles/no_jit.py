"""Refused: gradient descent with no jitted function at all."""

import classifier
import common
import jax

args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
