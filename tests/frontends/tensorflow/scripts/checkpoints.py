"""Six steps with a checkpoint after the third; or, with `--restore`, the last three from another run's checkpoint."""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("folder", help="of the checkpoint; a SavedModel is written there before the first step")
parser.add_argument("--restore", action="store_true")
parser.add_argument("--dump")
arguments = parser.parse_args()

keras.utils.set_random_seed(1 if arguments.restore else 0)
inputs = np.random.default_rng(0).standard_normal((6, 32, 16)).astype(np.float32)
model = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(n, "tanh") for n in (32, 32, 4))])
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - x[:, :4]) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


if arguments.restore:
    checkpoint.restore(tf.train.latest_checkpoint(arguments.folder)).assert_consumed()
else:
    tf.saved_model.save(model, f"{arguments.folder}/before")
losses = []
while int(optimizer.iterations) < len(inputs):
    losses.append(float(train_step(inputs[int(optimizer.iterations)])))
    if len(losses) == 3 and not arguments.restore:
        checkpoint.save(f"{arguments.folder}/at")
print(" ".join(f"{loss:.4f}" for loss in losses[-3:]))
if arguments.dump:
    state = {v.path: np.asarray(v) for v in [*model.variables, *optimizer.variables]}
    np.savez(arguments.dump, loss=np.array(losses[-3:]), **state)
