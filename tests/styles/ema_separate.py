"""Style: an exponential moving average of the parameters, by a second jitted function after the step."""

import classifier
import common
import jax
import optax

optimizer = optax.adam(1e-2)


@jax.jit
def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def update_ema(ema, params):
    return jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, ema, params)


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
ema = params
opt_state = optimizer.init(params)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, opt_state, loss = train_step(params, opt_state, x, y)
    ema = update_ema(ema, params)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "ema": ema, "opt_state": opt_state})
