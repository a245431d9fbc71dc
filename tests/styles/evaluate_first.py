"""Style: the untrained model is evaluated, and the accuracy read, before the first step."""

import classifier
import common
import jax


@jax.jit
def evaluate(params, x, y):
    return (classifier.apply(params, x).argmax(-1) == y).mean()


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


args = common.parser().parse_args()
params = classifier.init_params(jax.random.key(0))
held_out = next(common.batches(1, rows=64))
print(f"accuracy before {evaluate(params, *held_out):.3f}")
losses = []
for x, y in common.batches(args.steps, permute=args.permute_rows):
    params, loss = train_step(params, x, y)
    losses.append(loss)
print(f"accuracy after {evaluate(params, *held_out):.3f}")
common.dump(args.dump, common.print_losses(losses), params)
