"""A variable has one value, whichever side it was written on and however it is looked at. Run under a plan."""

import numpy as np
import tensorflow as tf

w = tf.Variable(np.zeros((8, 8), np.float32), name="w")
steps = tf.Variable(0.0, trainable=False, name="steps")
x = np.ones((8, 8), np.float32)


@tf.function
def train_step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(batch @ w)
    w.assign_sub(tape.gradient(loss, w) * 0.0 - 1.0)
    steps.assign_add(1.0)
    return loss


@tf.function
def total():
    return tf.reduce_sum(w)


@tf.function
def double(variable):
    variable.assign(2.0 * variable)


@tf.function
def forget():
    w.assign(tf.zeros_like(w))


for _ in range(8):
    train_step(x)
first = w[0, 0]
assert float(first) == 8.0, first
assert float(total()) == 8.0 * 64
double(w)  # as an argument
assert float(w.numpy()[0, 0]) == 16.0
train_step(x)
assert float(tf.add(w, 0.0)[0, 0]) == 17.0  # handed to an operation as it is
w.assign_add(tf.ones_like(w))
train_step(x)
assert float(w.read_value()[0, 0]) == 19.0
forget()
train_step(x)
assert float(tf.convert_to_tensor(w)[0, 0]) == 1.0
w[0, 0].assign(5.0)
train_step(x)
assert float(w[0, 0]) == 6.0
assert float(w[1, 1]) == 2.0
w.scatter_nd_update([[0, 0]], [1.0])
train_step(x)
assert float(w[0, 0]) == 2.0
handle = w.handle
assert float(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)[0, 0]) == 2.0
concrete = total.get_concrete_function()
train_step(x)
assert float(concrete()) == 3.0 + 4.0 * 63
copied = tf.Variable(w)
assert float(copied[0, 0]) == 3.0
checkpoint = tf.train.Checkpoint(w=w)
path = checkpoint.write("slots")
train_step(x)
checkpoint.read(path)
assert float(w[0, 0]) == 3.0
train_step(x)
assert float(w[0, 0]) == 4.0
gradients = tf.GradientTape()
with gradients as tape:
    loss = tf.reduce_sum(w * w)
assert float(tape.gradient(loss, w)[0, 0]) == 8.0
assert float(steps) == 16.0
