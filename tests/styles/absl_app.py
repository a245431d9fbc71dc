"""Style: an absl application with flags."""

import classifier
import common
import jax
import optax
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 20, "training steps")
flags.DEFINE_float("learning_rate", 1e-2, "Adam's learning rate")
flags.DEFINE_bool("permute-rows", False, "shuffle the rows inside each batch")
flags.DEFINE_string("dump", None, "save the losses and the final state as an .npz file")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    optimizer = optax.adam(FLAGS.learning_rate)

    @jax.jit
    def train_step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(classifier.loss_fn)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params = classifier.init_params(jax.random.PRNGKey(0))
    opt_state = optimizer.init(params)
    losses = []
    for x, y in common.batches(FLAGS.steps, permute=FLAGS["permute-rows"].value):
        params, opt_state, loss = train_step(params, opt_state, x, y)
        losses.append(loss)
    logging.info("trained for %d steps", FLAGS.steps)
    common.dump(FLAGS.dump, common.print_losses(losses), {"params": params, "opt_state": opt_state})


if __name__ == "__main__":
    app.run(main)
