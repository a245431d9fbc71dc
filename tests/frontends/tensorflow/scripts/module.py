"""TensorFlow without Keras: a `tf.Module` made in the first call, its step takes the batch from an iterator."""

import argparse

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--dump")
parser.add_argument("--permute", action="store_true")
arguments = parser.parse_args()

data = np.random.default_rng(0)
inputs = data.standard_normal((256, 16)).astype(np.float32)
targets = inputs.sum(1, keepdims=True).astype(np.float32)
if arguments.permute:
    rows = np.concatenate([np.arange(256)[i : i + 64][::-1] for i in range(0, 256, 64)])
    inputs, targets = inputs[rows], targets[rows]


class Trainer(tf.Module):
    def __init__(self):
        super().__init__()
        self.layers = None
        self.steps = tf.Variable(0, trainable=False)
        self.rate = tf.Variable(0.05, trainable=False)

    def __call__(self, x):
        if self.layers is None:
            normal = tf.random.stateless_normal
            self.layers = [tf.Variable(normal([16, 64], [1, 2]) * 0.1), tf.Variable(normal([64, 1], [3, 4]) * 0.1)]
        return tf.tanh(x @ self.layers[0]) @ self.layers[1]

    @tf.function
    def step(self, iterator, scale=1.0):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2) * scale
        for variable, gradient in zip(self.layers, tape.gradient(loss, self.layers), strict=True):
            variable.assign_sub(self.rate * gradient)
        self.steps.assign_add(1)
        return loss, [self.steps, tf.shape(x)[0]]

    @tf.function(input_signature=[tf.TensorSpec([None, 16])])
    def predict(self, x):
        return self(x)

    @tf.function
    def printing(self, x):
        tf.print("inside", tf.shape(x), tf.strings.as_string(self.steps))
        return tf.reduce_mean(tf.boolean_mask(x, x > 0))

    @tf.function
    def shrink(self, count):
        for _ in tf.range(count):
            self.layers[0].assign(0.99 * self.layers[0])


trainer = Trainer()
iterator = iter(tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(64).repeat(3))
losses = []
for _ in range(12):
    loss, (steps, size) = trainer.step(iterator)
    losses.append(float(loss))
    print(f"step {int(steps)} loss {loss:.4f} rows {int(size)}")
    if steps == 5:
        print(f"positive {float(trainer.printing(inputs[:8])):.4f}")
        trainer.shrink(tf.constant(3))
        trainer.rate.assign(0.02)
try:
    trainer.step(iterator)
except tf.errors.OutOfRangeError:
    print("no more batches")
print(f"predicted {float(tf.norm(trainer.predict(inputs))):.4f}, eagerly {float(tf.norm(trainer(inputs))):.4f}")
tf.saved_model.save(trainer, "saved")
loaded = tf.saved_model.load("saved")
print(f"loaded {float(tf.norm(loaded.predict(inputs[:10]))):.4f} at rate {float(loaded.rate):.3f}")
if arguments.dump:
    state = {"w": trainer.layers[0].numpy(), "v": trainer.layers[1].numpy()}
    np.savez(arguments.dump, loss=np.array(losses), **state)
