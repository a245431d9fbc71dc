"""Ends itself with exit code 3, after half of its steps (`--when before`: before the first)."""

import sys

import classifier
import common
import jax


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


parser = common.parser()
parser.add_argument("--when", choices=["before", "during"], default="during")
args = parser.parse_args()
params = classifier.init_params(jax.random.key(0))
if args.when == "before":
    sys.exit(3)
for step, (x, y) in enumerate(common.batches(args.steps), start=1):
    params, loss = train_step(params, x, y)
    if step > args.steps // 2:
        print(f"step {step} loss {float(loss)!r}")
        sys.exit(3)
