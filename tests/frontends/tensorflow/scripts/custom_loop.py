"""A custom loop: Keras layers and optimizer, metrics, moving average, checkpoint, a last batch that is smaller."""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--dump")
parser.add_argument("--permute", action="store_true")
parser.add_argument("--float", default="float64")
parser.add_argument("--epochs", type=int, default=2, help="of four steps; restored to the end of the last but one")
arguments = parser.parse_args()

keras.utils.set_random_seed(0)
keras.config.set_floatx(arguments.float)
data = np.random.default_rng(0)
inputs = data.standard_normal((232, 32))
labels = (inputs @ data.standard_normal((32, 8))).argmax(1).astype(np.int32)
inputs = inputs.astype(arguments.float)
order = np.arange(64)[::-1] if arguments.permute else np.arange(64)

x = keras.Input((32,))
hidden = keras.layers.Dense(64)(x)
for _ in range(2):
    inner = keras.layers.Dense(128, activation="gelu")(keras.layers.LayerNormalization()(hidden))
    hidden = hidden + keras.layers.Dense(64)(inner)
model = keras.Model(x, keras.layers.Dense(8)(hidden))
optimizer = keras.optimizers.Adam(1e-3, clipnorm=5.0)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
average = [tf.Variable(w, trainable=False) for w in model.trainable_variables]


@tf.function(reduce_retracing=True, jit_compile=True)
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean.update_state(loss)
    accuracy.update_state(y, logits)
    return {"loss": loss, "norm": tf.linalg.global_norm(gradients), "one": 1.0}


@tf.function
def update_average():
    for slow, fast in zip(average, model.trainable_variables, strict=True):
        slow.assign(0.9 * slow + 0.1 * fast)


@tf.function
def evaluate(x, y):
    return loss_fn(y, model(x, training=False))


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
losses = []
for epoch in range(arguments.epochs):
    mean.reset_state()
    accuracy.reset_state()
    for start in range(0, 232, 64):
        rows = order[order < len(inputs) - start] + start
        metrics = train_step(inputs[rows], labels[rows])
        losses.append(metrics["loss"])
        update_average()
        print(f"step {int(optimizer.iterations)} loss {metrics['loss']:.4f} norm {metrics['norm']:.3f}")
    print(f"epoch {epoch} mean {mean.result():.4f} accuracy {float(accuracy.result()):.3f}")
    print(f"evaluated {float(evaluate(inputs[:100], labels[:100])):.4f}")
    if epoch == arguments.epochs - 2:
        path = checkpoint.write("checkpoint")
        optimizer.learning_rate = 5e-4
checkpoint.read(path).assert_consumed()
print(f"restored to step {int(optimizer.iterations)}, learning rate {float(optimizer.learning_rate):.4f}")
losses.append(train_step(inputs[order], labels[order])["loss"])
print(f"mean {float(tf.reduce_mean(losses)):.4f}, {np.mean([float(v) for v in losses]):.4f}, {metrics['one'].numpy()}")
if arguments.dump:
    state = {v.path: np.asarray(v) for v in [*model.variables, *optimizer.variables]}
    state |= {f"average/{v.path}": np.asarray(slow) for v, slow in zip(model.trainable_variables, average, strict=True)}
    np.savez(arguments.dump, loss=np.array([float(v) for v in losses]), **state)
