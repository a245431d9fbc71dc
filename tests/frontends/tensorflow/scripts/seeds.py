"""Dropout, a generator's random numbers and mixed precision."""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--dump")
parser.add_argument("--policy", default="float32")
arguments = parser.parse_args()

keras.utils.set_random_seed(0)
keras.mixed_precision.set_global_policy(arguments.policy)
generator = tf.random.Generator.from_seed(3)
data = np.random.default_rng(0)
inputs = data.standard_normal((96, 16)).astype(np.float32)
targets = inputs.sum(1, keepdims=True).astype(np.float32)
model = keras.Sequential(
    [
        keras.Input((16,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dropout(0.3),
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dense(1, dtype="float32"),
    ]
)


class Noisy(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = model

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        return super().train_step((x + 0.1 * generator.normal(tf.shape(x)), y))


noisy = Noisy()
schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5)
noisy.compile(keras.optimizers.SGD(schedule, momentum=0.9), "mse", jit_compile=True)
losses = noisy.fit(inputs, targets, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"]
print(" ".join(f"{v:.3f}" for v in losses))
if arguments.dump:
    np.savez(arguments.dump, loss=np.array(losses), **{v.path: np.asarray(v, np.float32) for v in noisy.variables})
