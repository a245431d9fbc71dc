"""Trains three models one after the other; what is left of each is told."""

import gc
import weakref

import jax
import keras
import numpy as np
import tensorflow as tf

inputs = np.ones((32, 64), np.float32)


def train():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for rows in (32, 32, 24):
        loss = train_step(inputs[:rows])
    print(f"loss {float(loss):.4f}")
    return [weakref.ref(model), weakref.ref(train_step), weakref.ref(model.variables[0].value)]


for _ in range(3):
    left = train()
    keras.utils.clear_session()
    gc.collect()
    gc.collect()
    print("alive", sum(r() is not None for r in left), "bytes", sum(a.nbytes for a in jax.live_arrays()))
