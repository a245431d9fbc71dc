"""Style: an exponential moving average of the parameters, kept inside the step."""

import classifier
import common
import jax
import optax

optimizer = optax.adam(1e-2)


@jax.jit
def train_step(state, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(state["params"], x, y)
    updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    ema = optax.incremental_update(params, state["ema"], step_size=0.01)
    return {"params": params, "ema": ema, "opt_state": opt_state}, loss


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
state = {"params": params, "ema": params, "opt_state": optimizer.init(params)}
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    state, loss = train_step(state, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), state)
