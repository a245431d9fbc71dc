"""Style: the old parameters and optimizer state are donated by position."""

import classifier
import common
import jax
import optax

optimizer = optax.adam(1e-2)


def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


train_step = jax.jit(train_step, donate_argnums=(0, 1))

args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
opt_state = optimizer.init(params)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, opt_state, loss = train_step(params, opt_state, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})
