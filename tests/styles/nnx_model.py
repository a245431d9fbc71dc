"""Style: a Flax NNX module and `nnx.Optimizer`, both changed in place by an `nnx.jit` step."""

import common
import jax
import optax
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.linear1 = nnx.Linear(common.FEATURES, 64, rngs=rngs)
        self.linear2 = nnx.Linear(64, common.CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.linear2(nnx.relu(self.linear1(x)))


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss


args = common.parser().parse_args()
model = MLP(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    losses.append(train_step(model, optimizer, x, y))
values = common.print_losses(losses)
state = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
common.dump(args.dump, values, jax.tree.map(lambda leaf: leaf, nnx.to_pure_dict(nnx.State(state))))
