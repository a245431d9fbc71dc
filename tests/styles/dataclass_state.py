"""Style: the train state is a dataclass of the script's own, registered as a pytree."""

import dataclasses
import functools
from typing import Any

import classifier
import common
import jax
import jax.numpy as jnp
import optax


@functools.partial(jax.tree_util.register_dataclass, data_fields=["step", "params", "opt_state"], meta_fields=["tag"])
@dataclasses.dataclass
class TrainState:
    step: jax.Array
    params: Any
    opt_state: Any
    tag: str


optimizer = optax.adamw(1e-2)


@jax.jit
def train_step(state: TrainState, batch) -> tuple[TrainState, jax.Array]:
    loss, grads = jax.value_and_grad(classifier.loss_fn)(state.params, *batch)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state), loss


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
state = TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), tag="dataclass")
losses = []
for batch in common.batches(args.steps, permute=args.permute_rows):
    state, loss = train_step(state, batch)
    losses.append(loss)
common.dump(args.dump, common.print_losses(losses), state)
