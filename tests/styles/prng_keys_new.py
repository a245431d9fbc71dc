"""Style: typed PRNG keys (`jax.random.key`), split inside the step and carried in the state; dropout."""

import common
import dropout
import jax


@jax.jit
def train_step(params, key, x, y):
    key, subkey = jax.random.split(key)
    params, loss = dropout.descend(params, subkey, x, y)
    return params, key, loss


args = common.parser().parse_args()
key, init_key = jax.random.split(jax.random.key(0))
params = dropout.init_params(init_key)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, key, loss = train_step(params, key, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "key": key})
