"""Style: a frozen config object and a string given as static arguments."""

import dataclasses

import common
import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Config:
    hidden: int = 64
    learning_rate: float = 0.1


def apply(params, x, activation):
    hidden = getattr(jax.nn, activation)(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def train_step(config, params, x, y, activation):
    def loss_fn(params):
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, x, activation), y).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - config.learning_rate * g, params, grads), loss


train_step = jax.jit(train_step, static_argnums=0, static_argnames="activation")

args = common.parser().parse_args()
config = Config()
key_1, key_2 = jax.random.split(jax.random.key(0))
params = {
    "w1": jax.random.normal(key_1, (common.FEATURES, config.hidden)) * 0.2,
    "b1": jnp.zeros(config.hidden),
    "w2": jax.random.normal(key_2, (config.hidden, common.CLASSES)) * 0.1,
    "b2": jnp.zeros(common.CLASSES),
}
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, loss = train_step(config, params, x, y, activation="gelu")
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), params)
