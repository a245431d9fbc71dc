"""Style: the loss is read and printed after every step, from the first one on."""

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


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
opt_state = optimizer.init(params)
losses = []
for step, (x, y) in enumerate(common.batches(args.steps, permute=args.permute_rows), start=1):
    params, opt_state, loss = train_step(params, opt_state, x, y)
    losses.append(float(loss))
    print(f"step {step} loss {losses[-1]!r}")
common.dump(args.dump, losses, {"params": params, "opt_state": opt_state})
