"""Style: gradient accumulation by `jax.lax.scan` over micro-batches, over layers that are scanned as well."""

import common
import jax
import jax.numpy as jnp
import optax

LAYERS, WIDTH, MICRO_BATCHES = 3, 32, 2


def init_params(key):
    keys = jax.random.split(key, 2)
    return {
        "layers": {
            "w": jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) * WIDTH**-0.5,
            "b": jnp.zeros((LAYERS, WIDTH)),
        },
        "head": jax.random.normal(keys[1], (WIDTH, common.CLASSES)) * WIDTH**-0.5,
    }


def loss_fn(params, x, y):
    def layer(x, p):
        return x + jnp.tanh(x @ p["w"] + p["b"]), None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], y).mean()


optimizer = optax.sgd(0.1, momentum=0.9)


@jax.jit
def train_step(params, opt_state, x, y):
    def accumulate(carry, micro_batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, *micro_batch)
        return jax.tree.map(jnp.add, carry, (loss, grads)), None

    micro_batches = jax.tree.map(lambda a: a.reshape(MICRO_BATCHES, -1, *a.shape[1:]), (x, y))
    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(accumulate, zeros, micro_batches)
    loss, grads = jax.tree.map(lambda t: t / MICRO_BATCHES, total)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


args = common.parser().parse_args()
params = init_params(jax.random.key(0))
opt_state = optimizer.init(params)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, opt_state, loss = train_step(params, opt_state, x, y)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})
