"""TensorFlow's part in capturing a script: its hooks put in place, the step found and built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from automap_launch.errors import CaptureError, ConfigError
from automap_launch.frontends.tensorflow import calls, files, keras_fit, tf_internals
from automap_launch.frontends.tensorflow.build_step import build_step
from automap_launch.frontends.tensorflow.detect_step import StepDetector
from automap_launch.frontends.tensorflow.lowering import LoweredGraph
from automap_launch.train_step import Entry, StepIdentity, TrainStep

Make = Callable[[Entry, Sequence[str]], TrainStep]


def watch(
    accept: Callable[[Make], NoReturn], refuse: Callable[[CaptureError | ConfigError], NoReturn], step_name: str | None
) -> StepDetector:
    """Watches TensorFlow, which the script has just imported.

    Args:
      accept: called with what makes the step, given the entry and the platforms; must not return.
      refuse: called with what keeps the step from being captured; must not return.
      step_name: see `StepDetector`.
    """

    def found(identity: StepIdentity, lowered: LoweredGraph) -> NoReturn:
        accept(lambda entry, platforms: build_step(identity, lowered, entry, platforms))

    detector = StepDetector(found, refuse, step_name)
    tf_internals.hide_accelerators()
    tf_internals.hook_strategies(detector.on_strategy)
    tf_internals.hook_dataset_functions(detector.on_data_set)
    files.install()
    calls.install(detector.on_call)
    keras_fit.install(detector.on_eager_fit, detector.on_strategy)
    return detector
