"""Style: a Flax Linen module, `TrainState.create`, `apply_gradients`, and a separate evaluation step."""

import common
import jax
import optax
from flax import linen as nn
from flax.training.train_state import TrainState


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(features=8, kernel_size=(3, 3))(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=64)(x))
        return nn.Dense(features=10)(x)


@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


@jax.jit
def eval_step(state, batch):
    logits = state.apply_fn({"params": state.params}, batch["image"])
    return (logits.argmax(-1) == batch["label"]).mean()


def main():
    args = common.parser().parse_args()
    model = CNN()
    variables = model.init(jax.random.key(0), jax.numpy.ones((1, 8, 8, 1)))
    state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optax.adam(1e-3))
    losses = []
    for image, label in common.digits(args.steps, permute=args.permute_rows):
        batch = {"image": image, "label": label}
        state, metrics = train_step(state, batch)
        losses.append(metrics["loss"])
    values = common.print_losses(losses)
    print(f"accuracy {float(eval_step(state, batch)):.3f}")
    common.dump(args.dump, values, {"step": state.step, "params": state.params, "opt_state": state.opt_state})


if __name__ == "__main__":
    main()
