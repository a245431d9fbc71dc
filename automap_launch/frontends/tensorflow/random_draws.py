"""Draws from a state of TensorFlow's own (`tf.random.uniform`, `tf.nn.dropout`), made a part of the program.

XLA's operations for them take no seed: each device would draw for itself, and no two runs would be alike, as they are
not in TensorFlow with XLA. In a trace for XLA they draw from a `tf.random.Generator` instead, whose state the step
carries like any other variable. The numbers are others than TensorFlow's, of the same distribution.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from automap_launch.frontends.tensorflow import tf_internals

# Where the script sets no seed any stream is right, and this one is the same in all processes.
_NO_SEED = 0


@contextlib.contextmanager
def own_draws() -> Iterator[None]:
    """Has what is traced inside draw from one generator, seeded by the script's `tf.random.set_seed`."""
    with tf_internals.replaced_draws(_DRAWS):
        yield


_generators: list[Any] = []


def _generator() -> Any:
    if not _generators:
        seed = tf_internals.seed()
        with tf.init_scope():
            _generators.append(tf.random.Generator.from_seed(_NO_SEED if seed is None else seed))
    return _generators[0]


# Called as TensorFlow's operations are, which are given their seeds and a name by keyword.


def _uniform(shape: Any, dtype: Any, **options: Any) -> Any:
    return _generator().uniform(shape, dtype=tf.as_dtype(dtype))


def _uniform_int(shape: Any, minval: Any, maxval: Any, **options: Any) -> Any:
    return _generator().uniform(shape, minval, maxval, dtype=tf.convert_to_tensor(minval).dtype)


def _normal(shape: Any, dtype: Any, **options: Any) -> Any:
    return _generator().normal(shape, dtype=tf.as_dtype(dtype))


def _truncated_normal(shape: Any, dtype: Any, **options: Any) -> Any:
    return _generator().truncated_normal(shape, dtype=tf.as_dtype(dtype))


def _categorical(logits: Any, num_samples: Any, output_dtype: Any, **options: Any) -> Any:
    return tf.random.stateless_categorical(logits, num_samples, _seed(), dtype=tf.as_dtype(output_dtype))


def _shuffle(value: Any, **options: Any) -> Any:
    value = tf.convert_to_tensor(value)
    keys = _generator().uniform(tf.shape(value)[:1], dtype=tf.float64)
    return tf.gather(value, tf.argsort(keys))


def _seed() -> Any:
    """For a stateless draw: another one each time."""
    return _generator().uniform([2], 0, tf.int32.max, dtype=tf.int32)


_DRAWS: dict[str, Callable[..., Any]] = {
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "multinomial": _categorical,
    "random_shuffle": _shuffle,
}
