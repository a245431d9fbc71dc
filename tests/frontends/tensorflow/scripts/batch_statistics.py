"""Batch norm of Keras in a custom loop; with `--parts`, each part of a batch has statistics of its own."""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--dump")
parser.add_argument("--parts", type=int, default=1)
arguments = parser.parse_args()

keras.utils.set_random_seed(0)
data = np.random.default_rng(0)
inputs = data.standard_normal((4, 32, 16))
targets = inputs.sum(2, keepdims=True)
layers = [keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((16,)), *layers])
optimizer = keras.optimizers.Adam(0.05)


@tf.function(jit_compile=True)
def train_step(x, y):
    moving = model.non_trainable_variables
    before, after, losses = [tf.identity(v) for v in moving], [], []
    with tf.GradientTape() as tape:
        for part, wanted in zip(tf.split(x, arguments.parts), tf.split(y, arguments.parts), strict=True):
            for variable, value in zip(moving, before, strict=True):
                variable.assign(value)
            losses.append(tf.reduce_mean((model(part, training=True) - wanted) ** 2))
            after.append([tf.identity(v) for v in moving])
        loss = tf.reduce_mean(losses)
    for variable, values in zip(moving, zip(*after, strict=True), strict=True):
        variable.assign(tf.reduce_mean(values, 0))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


losses = [float(train_step(x, y)) for x, y in zip(inputs, targets, strict=True)]
print(" ".join(f"{loss:.4f}" for loss in losses))
if arguments.dump:
    state = {v.path: np.asarray(v) for v in [*model.variables, *optimizer.variables]}
    np.savez(arguments.dump, loss=np.array(losses), **state)
