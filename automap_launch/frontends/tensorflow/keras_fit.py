"""Keras's `fit`, `train_on_batch` and `evaluate` on TensorFlow, one batch a call.

Keras takes its batches inside a `tf.function`, which no accelerator can. What stands here takes each batch from the
iterator first, and calls the step with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from automap_launch.frontends.import_hook import when_imported
from automap_launch.frontends.libraries import identity_of
from automap_launch.frontends.source_lines import is_users
from automap_launch.frontends.tensorflow import tf_internals
from automap_launch.frontends.tensorflow.calls import name_as
from automap_launch.train_step import StepIdentity


def install(on_eager: Callable[[], None], on_strategy: Callable[[], None]) -> None:
    """Puts the replacement in place as soon as Keras's trainer is imported.

    Args:
      on_eager: called when a model is to train without compiling.
      on_strategy: called when a model was made under a `tf.distribute` strategy.
    """

    def make_function(trainer: Any, step_function: Any, real: Callable[[Any], Any]) -> Any:
        if trainer.run_eagerly or tf_internals.functions_run_eagerly():
            on_eager()
            return real(step_function)
        if trainer._distribute_strategy is not None:
            on_strategy()
        return batch_by_batch(trainer, step_function)

    when_imported(tf_internals.KERAS_VARIABLES, lambda _: tf_internals.hook_keras_variables())
    when_imported(tf_internals.KERAS_TRAINER, lambda _: tf_internals.hook_keras_trainer(make_function))


def batch_by_batch(trainer: Any, step_function: Any) -> Callable[[Any], Any]:
    """What Keras calls with an iterator for `steps_per_execution` steps. It returns the last step's logs."""

    @tf_internals.not_converted
    def one_step(data: Any) -> Any:
        return trainer.distribute_strategy.run(step_function, args=(data,))

    step = tf.function(one_step, reduce_retracing=True, jit_compile=trainer.jit_compile)
    name_as(step, _identity(trainer, step_function))
    call = trainer._autoconvert_optionals(step)

    def run(iterator: Any) -> Any:
        logs, done = None, False
        # Counted first: an iterator that has more is not to lose a batch.
        for _, data in zip(range(trainer.steps_per_execution), iterator, strict=False):
            logs, done = call(data), True
        if not done:
            raise StopIteration
        return logs

    return run


def _identity(trainer: Any, step_function: Any) -> StepIdentity:
    """The user's own `train_step` where a model has one; else the model's class and the name of Keras's."""
    found = identity_of(step_function)
    if found.source is not None and is_users(found.source.file):
        return found
    return StepIdentity(f"{type(trainer).__name__}.{found.name.rpartition('.')[2]}", None)
