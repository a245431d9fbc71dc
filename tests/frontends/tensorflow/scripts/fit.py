"""Keras `fit` with what people use: validation, callbacks, weights, evaluation, prediction, a second model."""

import argparse

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--dump")
parser.add_argument("--permute", action="store_true")
parser.add_argument("--norm", choices=("Batch", "Layer"), default="Batch")
parser.add_argument("--steps-per-execution", type=int, default=1)
parser.add_argument("--policy", default="float32", help="of mixed precision")
arguments = parser.parse_args()

keras.utils.set_random_seed(0)
if arguments.policy != "float32":
    keras.mixed_precision.set_global_policy(arguments.policy)
data = np.random.default_rng(0)
inputs = data.standard_normal((200, 16)).astype(np.float32)
labels = (inputs @ data.standard_normal((16, 4))).argmax(1).astype(np.int32)
weights = np.linspace(0, 1, 200)
validation = inputs[:50], labels[:50]
if arguments.permute:
    # Inside batches of 32 as well as of 40.
    rows = np.arange(200).reshape(25, 8)[:, ::-1].reshape(200)
    inputs, labels, weights = inputs[rows], labels[rows], weights[rows]


def compiled():
    norm = getattr(keras.layers, f"{arguments.norm}Normalization")
    hidden = [keras.layers.Dense(32, "relu"), norm()]
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(4)])
    model.compile(
        keras.optimizers.AdamW(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
        steps_per_execution=arguments.steps_per_execution,
    )
    return model


model = compiled()
seen = []
history = model.fit(
    inputs,
    labels,
    batch_size=32,
    epochs=4,
    shuffle=False,
    verbose=0,
    validation_data=validation,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0),
        keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1.0, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("fit.keras"),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, f"{logs['loss']:.4f}"))),
    ],
)
losses = list(history.history["loss"])
for name, values in history.history.items():
    print(name, " ".join(f"{v:.4f}" for v in values))
print(seen)
history = model.fit(
    inputs, labels, batch_size=40, shuffle=False, verbose=0, class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}
)
losses += history.history["loss"]
history = model.fit(inputs, labels, batch_size=32, shuffle=False, verbose=0, sample_weight=weights)
losses += history.history["loss"]
for _ in range(2):
    logs = model.train_on_batch(inputs[:32], labels[:32], return_dict=True)
    losses.append(logs["loss"])
    print(" ".join(f"{name} {value:.4f}" for name, value in logs.items()))
print("evaluated", " ".join(f"{v:.4f}" for v in model.evaluate(inputs, labels, verbose=0)))
print(f"predicted {np.abs(model.predict(inputs, verbose=0)).sum():.2f} after {int(model.optimizer.iterations)} steps")
if arguments.dump:
    state = {v.path: np.asarray(v) for v in [*model.variables, *model.optimizer.variables]}
    np.savez(arguments.dump, loss=np.array(losses), **state)
model.set_weights([w * 0.5 for w in model.get_weights()])
print("halved", " ".join(f"{v:.4f}" for v in model.evaluate(inputs, labels, verbose=0)))
loaded = keras.models.load_model("fit.keras")
print("loaded", " ".join(f"{v:.4f}" for v in loaded.evaluate(inputs, labels, verbose=0)))
second = compiled()
history = second.fit(inputs, labels, batch_size=32, epochs=2, shuffle=False, verbose=0)
print("second model", " ".join(f"{v:.4f}" for v in history.history["loss"]))
