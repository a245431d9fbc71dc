"""Style: gradients in one jitted function, the optimizer's update in another."""

import classifier
import common
import jax
import optax

optimizer = optax.sgd(0.1, momentum=0.9)


@jax.jit
def compute_gradients(params, x, y):
    return jax.value_and_grad(classifier.loss_fn)(params, x, y)


@jax.jit
def apply_gradients(params, opt_state, grads):
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
opt_state = optimizer.init(params)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    loss, grads = compute_gradients(params, x, y)
    params, opt_state = apply_gradients(params, opt_state, grads)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})
