"""Draws that name no seed: each step, row and device has its own. Run under a plan."""

import numpy as np
import tensorflow as tf

w = tf.Variable(tf.ones([64, 8]), name="w")
x = np.ones((16, 64), np.float32)


@tf.function
def train_step(batch):
    kept = tf.nn.dropout(tf.ones_like(batch), 0.5)
    noise = tf.random.normal(tf.shape(batch), 3.0, 0.5)
    picked = tf.random.uniform([16], maxval=10, dtype=tf.int32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch * kept + 0.01 * noise) @ w)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    chosen = tf.random.categorical(tf.math.log([[0.2, 0.8, 0.0]]), 64)
    order = tf.random.shuffle(tf.range(16))
    return kept, noise, picked, chosen, order


drawn = [train_step(x) for _ in range(8)]
kept, noise, picked, chosen, order = (np.stack([step[i].numpy() for step in drawn]) for i in range(5))
kept, noise = np.concatenate(kept), np.concatenate(noise)
assert set(np.unique(kept)) == {0.0, 2.0}
assert abs(kept.mean() - 1) < 0.05, kept.mean()
assert len(np.unique(kept, axis=0)) == 8 * 16
assert abs(noise.mean() - 3) < 0.05
assert abs(noise.std() - 0.5) < 0.05
assert len(np.unique(noise, axis=0)) == 8 * 16
assert set(np.unique(picked)) == set(range(10))
assert chosen.shape == (8, 1, 64)
assert set(np.unique(chosen)) == {0, 1}
assert abs(chosen.mean() - 0.8) < 0.1
assert (np.sort(order) == np.arange(16)).all()
assert len({step.tobytes() for step in order}) == 8
