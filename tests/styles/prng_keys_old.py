"""Style: raw uint32 PRNG keys (`jax.random.PRNGKey`), split outside, a fresh one given to each step; dropout."""

import common
import dropout
import jax


@jax.jit
def train_step(params, key, x, y):
    return dropout.descend(params, key, x, y)


args = common.parser().parse_args()
key = jax.random.PRNGKey(0)
key, init_key = jax.random.split(key)
params = dropout.init_params(init_key)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    key, dropout_key = jax.random.split(key)
    params, loss = train_step(params, dropout_key, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "key": key})
