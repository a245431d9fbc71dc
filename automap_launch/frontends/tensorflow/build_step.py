"""The `TrainStep` of a TensorFlow function that was found to be the step."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

import jaxlib
import tensorflow as tf

from automap_launch.frontends.tensorflow.lowering import LoweredGraph
from automap_launch.train_step import Entry, StepIdentity, TrainStep


def build_step(
    identity: StepIdentity, lowered: LoweredGraph, entry: Entry | None, platforms: Sequence[str]
) -> TrainStep:
    """The step, with the same module for each platform: TensorFlow lowers without regard to one."""
    versions = {
        "automap_launch": importlib.metadata.version("automap-launch"),
        "jaxlib": jaxlib.__version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
    }
    return TrainStep(
        identity=identity,
        frontend="tensorflow",
        arguments=lowered.arguments,
        results=lowered.results,
        modules=dict.fromkeys(platforms, lowered.artifact),
        fingerprint=lowered.fingerprint,
        sources=lowered.sources,
        entry=entry,
        versions=versions,
        text=lowered.text,
    )
