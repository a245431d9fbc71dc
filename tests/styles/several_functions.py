"""Style: initialisation, training and evaluation are jitted functions; evaluation runs between the steps."""

import classifier
import common
import jax
import optax

optimizer = optax.adam(1e-2)


@jax.jit
def init(key):
    params = classifier.init_params(key)
    return params, optimizer.init(params)


@jax.jit
def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def evaluate(params, x, y):
    return (classifier.apply(params, x).argmax(-1) == y).mean()


def main():
    args = common.parser().parse_args()
    held_out = next(common.batches(1, rows=64))
    params, opt_state = init(jax.random.key(0))
    losses = []
    for step, (x, y) in enumerate(common.batches(args.steps, permute=args.permute_rows)):
        params, opt_state, loss = train_step(params, opt_state, x, y)
        losses.append(loss)
        if (step + 1) % 10 == 0:
            print(f"accuracy {float(evaluate(params, *held_out)):.3f}")
    common.dump(args.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})


if __name__ == "__main__":
    main()
