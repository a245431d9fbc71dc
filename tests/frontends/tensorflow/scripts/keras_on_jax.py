"""Keras with the JAX backend: its step is a jitted function."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
# The harness has loaded Keras for TensorFlow; a script's own process would not have.
for name in [name for name in sys.modules if name.partition(".")[0] == "keras"]:
    del sys.modules[name]

import keras  # noqa: E402
import numpy as np  # noqa: E402

assert keras.backend.backend() == "jax"
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
inputs = np.random.default_rng(0).standard_normal((320, 16)).astype(np.float32)
history = model.fit(inputs, inputs.sum(1, keepdims=True), batch_size=32, epochs=2, shuffle=False, verbose=0)
print(f"{history.history['loss'][-1]:.4f}")
