"""Style: everything passed by keyword, the state donated by name, the new state returned in a dict."""

import classifier
import common
import jax
import optax

optimizer = optax.adam(1e-2)


def train_step(*, params, opt_state, batch):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, batch["x"], batch["y"])
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return {"params": optax.apply_updates(params, updates), "opt_state": opt_state}, {"loss": loss}


train_step = jax.jit(train_step, donate_argnames=("params", "opt_state"))

args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
state = {"params": params, "opt_state": optimizer.init(params)}
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    state, metrics = train_step(**state, batch={"x": x, "y": y})
    losses.append(metrics["loss"])
common.dump(args.dump, common.print_losses(losses), state)
