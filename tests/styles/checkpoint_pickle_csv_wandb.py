"""Style: the script logs to W&B, appends to a CSV file and pickles its parameters, all in the current folder."""

import csv
import pathlib
import pickle

import classifier
import common
import jax
import wandb


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def main():
    args = common.parser().parse_args()
    params = classifier.init_params(jax.random.key(0))
    run = wandb.init(project="digits", mode="offline", config={"learning_rate": 0.1})
    losses = []
    for step, (x, y) in enumerate(common.batches(args.steps, permute=args.permute_rows), start=1):
        params, loss = train_step(params, x, y)
        losses.append(float(loss))
        print(f"step {step} loss {losses[-1]!r}")
        run.log({"loss": losses[-1]}, step=step)
        with open("losses.csv", "a", newline="") as file:
            csv.writer(file).writerow([step, losses[-1]])
        if step % 10 == 0:
            pathlib.Path("checkpoints").mkdir(exist_ok=True)
            with open(f"checkpoints/step_{step}.pkl", "wb") as file:
                pickle.dump(jax.device_get(params), file)
    with open("params.pkl", "wb") as file:
        pickle.dump(params, file)
    with open("params.pkl", "rb") as file:
        assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), params, pickle.load(file)))
    run.finish()
    common.dump(args.dump, losses, params)


if __name__ == "__main__":
    main()
