"""Inputs for gin files: noisy copies of one random pattern a class. `import made_inputs` in the file registers them."""

import gin
import numpy as np
from trax.data import inputs


@gin.configurable
def made_inputs(features=16, classes=4, rows=32, seed=0):
    """Returns a `trax.data.inputs.Inputs`, as `train.inputs` takes it."""
    patterns = np.random.default_rng(seed).normal(size=(classes, features)).astype(np.float32)

    def stream(first):
        def batches(n_devices):
            del n_devices  # it is always one
            step = first
            while True:
                rng = np.random.default_rng([seed, step])
                labels = rng.integers(0, classes, rows).astype(np.int32)
                noise = rng.normal(size=(rows, features)).astype(np.float32)
                yield patterns[labels] + noise, labels, np.ones(rows, np.float32)
                step += 1

        return batches

    return inputs.Inputs(stream(0), stream(1_000_000))
