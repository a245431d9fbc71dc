"""Style: a Flax Linen module with batch norm; `batch_stats` is mutable and kept in the train state."""

from typing import Any

import common
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(8, (3, 3), use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.relu(x).mean(axis=(1, 2))
        return nn.Dense(10)(x)


class TrainState(train_state.TrainState):
    batch_stats: Any


@jax.jit
def train_step(state, image, label):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, image, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean(), updates

    (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads)
    return state.replace(batch_stats=updates["batch_stats"]), loss


args = common.parser().parse_args()
model = CNN()
variables = model.init(jax.random.key(0), jnp.ones((1, 8, 8, 1)), train=False)
state = TrainState.create(
    apply_fn=model.apply,
    params=variables["params"],
    batch_stats=variables["batch_stats"],
    tx=optax.sgd(0.05, momentum=0.9),
)
losses = []
for image, label in common.digits(args.steps, permute=args.permute_rows):
    state, loss = train_step(state, image, label)
    losses.append(loss)
final = {"params": state.params, "batch_stats": state.batch_stats, "opt_state": state.opt_state}
common.dump(args.dump, common.print_losses(losses), final)
