"""What the scripts of this folder share and what is not their style: made data, arguments, printing, saving."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

FEATURES, CLASSES = 32, 8


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser()
    result.add_argument("--steps", type=int, default=20)
    result.add_argument("--permute-rows", action="store_true", help="shuffle the rows inside each batch")
    result.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return result


def batches(
    steps: int, *, rows: int = 16, last_rows: int | None = None, permute: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`steps` batches of x [rows, FEATURES] float32 and y [rows] int32, labelled by a fixed random teacher.

    The last batch has `last_rows` rows. `permute` shuffles the rows inside each batch.
    """
    rng = np.random.default_rng(0)
    order = np.random.default_rng(1)
    teacher = rng.normal(size=(FEATURES, CLASSES))
    for step in range(steps):
        count = last_rows if last_rows is not None and step == steps - 1 else rows
        x = rng.normal(size=(count, FEATURES)).astype(np.float32)
        y = np.argmax(x @ teacher, axis=-1).astype(np.int32)
        if permute:
            shuffled = order.permutation(count)
            x, y = x[shuffled], y[shuffled]
        yield x, y


def digits(steps: int, *, rows: int = 32, permute: bool = False) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`steps` batches of scikit-learn's digits: images [rows, 8, 8, 1] float32 in 0..1 and labels [rows] int32."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rng = np.random.default_rng(0)
    order = np.random.default_rng(1)
    for _ in range(steps):
        picked = rng.integers(0, len(data.target), rows)
        if permute:
            picked = order.permutation(picked)
        images = data.images[picked, :, :, None] / 16
        yield images.astype(np.float32), data.target[picked].astype(np.int32)


def print_losses(losses: Iterable[Any]) -> list[float]:
    """Prints one line a step, with every digit. Called after the loop, so that no step waits for its loss."""
    values = [float(loss) for loss in losses]
    for step, value in enumerate(values, start=1):
        print(f"step {step} loss {value!r}")
    return values


def dump(path: str | None, losses: Iterable[float], state: Any) -> None:
    """Saves the losses as `loss` and each array of `state` under its path in the tree, if a path is given."""
    if path is None:
        return
    arrays = {
        jax.tree_util.keystr(name, simple=True, separator="/"): _as_numpy(leaf)
        for name, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
        if isinstance(leaf, (jax.Array, np.ndarray, np.generic))  # a model may also hold functions and strings
    }
    np.savez(path, loss=np.asarray(list(losses)), **arrays)


def _as_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
