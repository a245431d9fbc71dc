"""Style: Optax inside the jitted step; parameters, optimizer state and batch are its arguments."""

import classifier
import common
import jax
import optax

optimizer = optax.adam(learning_rate=1e-2)


@jax.jit
def step(params, opt_state, batch):
    x, y = batch
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, loss


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
opt_state = optimizer.init(params)
losses = []
for batch in common.batches(args.steps, permute=args.permute_rows):
    params, opt_state, loss = step(params, opt_state, batch)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})
