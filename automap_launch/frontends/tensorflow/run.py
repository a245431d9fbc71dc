"""TensorFlow's part in running a script under a plan: its hooks put in place before the script goes on."""

from __future__ import annotations

import jax

from automap_launch.frontends.import_hook import when_imported
from automap_launch.frontends.source_lines import current_line
from automap_launch.frontends.substitute import Build, Observer
from automap_launch.train_step import TrainStep


def take_the_step(step: TrainStep, build: Build, observer: Observer) -> None:
    """Has the script's step run as `build` makes it, once the script has imported TensorFlow.

    Args:
      step: the captured step.
      build, observer: see `frontends.substitute.Substitute`.
    """
    # Iteration counters and seeds of TensorFlow are 64 bits wide.
    jax.config.update("jax_enable_x64", True)
    when_imported("tensorflow", lambda _: _install(step, build, observer))


def _install(step: TrainStep, build: Build, observer: Observer) -> None:
    # Imported here: they import TensorFlow, and the script decides when that is done.
    from automap_launch.frontends.tensorflow import calls, files, keras_fit, refusals, tf_internals
    from automap_launch.frontends.tensorflow.slots import SlotTable
    from automap_launch.frontends.tensorflow.substitute import TensorflowSubstitute

    def on_strategy() -> None:
        raise refusals.strategy(current_line())

    def on_eager_fit() -> None:
        raise refusals.run_eagerly(current_line(), "the model was compiled with run_eagerly=True")

    tf_internals.hide_accelerators()
    tf_internals.hook_strategies(on_strategy)
    files.install()
    slots = SlotTable()
    slots.install()
    calls.install(TensorflowSubstitute(step, build=build, observer=observer, slots=slots))
    keras_fit.install(on_eager_fit, on_strategy)
