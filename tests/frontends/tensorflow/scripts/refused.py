"""Steps that cannot be planned, one for each way, named on the command line."""

import sys
import time

import keras
import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.ones([4, 2]), name="weights")
others = tf.Variable(tf.ones([4, 2]), name="others")
batch = np.ones((8, 4), np.float32)
words = np.array(["a", "bb"] * 4)
dataset = tf.data.Dataset.from_tensor_slices(batch).batch(4).repeat(3)
iterator = iter(dataset)


def learn(x, variable=weights):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((x @ variable) ** 2)
    variable.assign_sub(0.1 * tape.gradient(loss, variable))
    return loss


@tf.function
def py_function(x):
    y = tf.py_function(lambda a: 2 * a, [x], tf.float32)
    return learn(tf.ensure_shape(y, [8, 4]))


@tf.function
def printing(x):
    loss = learn(x)
    tf.print(loss)
    return loss


@tf.function
def whole_loop(batches):
    loss = 0.0
    for x in batches:
        loss = learn(x)
    return loss


@tf.function
def closure():
    return learn(next(iterator))


@tf.function
def two_batches(batches):
    return learn(next(batches) + next(batches))


@tf.function
def mask(x):
    return learn(tf.boolean_mask(x, x[:, 0] > 0))


@tf.function
def strings(x, text):
    return learn(x * tf.cast(tf.strings.length(text), tf.float32)[:, None])


@tf.function
def gradients_alone(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((x @ weights) ** 2)
    return tape.gradient(loss, weights)


@tf.function
def stateful_random(x):
    return learn(x * tf.random.gamma([8, 4], 1.0))


@tf.function
def counts(x):
    return learn(x * tf.random.poisson([8, 4], 1.0))


@tf.function
def sizes(x, count):
    return learn(x) + tf.reduce_sum(tf.zeros([count]))


@tf.function
def one(x):
    return learn(x)


@tf.function
def other(x):
    return learn(x, others)


@tf.function
def slow(x):
    time.sleep(2.5)  # as long as a large model's tracing
    return learn(x)


@tf.function
def by_hand(x):
    weights.assign_sub(0.1 * tf.transpose(x) @ (x @ weights))


for _ in range(6):
    match sys.argv[1]:
        case "whole_loop":
            whole_loop(dataset)
        case "two_batches":
            two_batches(iterator)
        case "closure":
            closure()
        case "strings":
            strings(batch, words)
        case "gradients_alone":
            weights.assign_sub(0.1 * gradients_alone(batch))
        case "sizes":
            sizes(batch, tf.constant(3))
        case "slow_adversarial":
            slow(batch)
            other(batch)
        case "adversarial":
            one(batch)
            other(batch)
        case "eager":
            learn(batch)
        case "eager_functions":
            tf.config.run_functions_eagerly(True)
            one(batch)
        case "data_set":
            for x in dataset.map(lambda x: x + tf.reduce_sum(weights)):
                one(x)
        case "strategy":
            tf.distribute.MirroredStrategy()
        case "eager_fit":
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=True)
            model.fit(batch, batch[:, :1], verbose=0)
        case name:
            globals()[name](batch)
