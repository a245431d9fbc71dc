"""Style: an Equinox module, `eqx.filter_jit`, `eqx.filter_value_and_grad` and `eqx.apply_updates`."""

import common
import equinox as eqx
import jax
import optax


@eqx.filter_value_and_grad
def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


def main():
    args = common.parser().parse_args()
    model = eqx.nn.MLP(common.FEATURES, common.CLASSES, width_size=64, depth=2, key=jax.random.key(0))
    optimizer = optax.adamw(1e-2)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        loss, grads = loss_fn(model, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    losses = []
    for x, y in common.batches(args.steps, permute=args.permute_rows):
        model, opt_state, loss = make_step(model, opt_state, x, y)
        losses.append(loss)
    common.dump(args.dump, common.print_losses(losses), {"model": model, "opt_state": opt_state})


if __name__ == "__main__":
    main()
