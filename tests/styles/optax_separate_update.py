"""Style: only the gradients are jitted; Optax's update runs outside, as its getting-started page has it."""

import classifier
import common
import jax
import optax

grad_fn = jax.jit(jax.value_and_grad(classifier.loss_fn))

args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
optimizer = optax.adam(1e-2)
opt_state = optimizer.init(params)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    loss, grads = grad_fn(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})
