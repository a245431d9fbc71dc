"""Style: all steps run inside one jitted function, by `jax.lax.fori_loop` over a stack of batches."""

import classifier
import common
import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def train(params, xs, ys):
    def body(i, carry):
        params, losses = carry
        loss, grads = jax.value_and_grad(classifier.loss_fn)(params, xs[i], ys[i])
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), losses.at[i].set(loss)

    return jax.lax.fori_loop(0, len(xs), body, (params, jnp.zeros(len(xs))))


args = common.parser().parse_args()
xs, ys = (np.stack(arrays) for arrays in zip(*common.batches(args.steps, permute=args.permute_rows), strict=True))
params, losses = train(classifier.init_params(jax.random.key(0)), xs, ys)
common.dump(args.dump, common.print_losses(losses), params)
