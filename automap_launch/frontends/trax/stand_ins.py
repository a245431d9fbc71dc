"""The modules that Trax's own modules are given in place of what they import."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from automap_launch.frontends.trax.gym_stand_in import gym_stand_in
from automap_launch.frontends.trax.jax_view import jax_config_module, jax_view, numpy_view, scipy_view
from automap_launch.frontends.trax.postponed import Backend, Seed
from automap_launch.frontends.trax.tensorflow_view import TensorFlowBackend, TensorFlowView, jaxboard_imports
from automap_launch.frontends.trax.view import View


class StandIns:
    """Made once a process.

    Attributes:
      modules: by the name under which Trax's modules import them.
      of_importer: by the importing module's name and that name.
      on_import: what is due when another package is imported, by its name.
    """

    def __init__(self, writes: bool) -> None:
        seed, backend = Seed(), Backend()
        jax, tensorflow = jax_view(), TensorFlowView(writes, seed)
        self.on_import: dict[str, Callable[[types.ModuleType], None]] = {
            "tensorflow": seed.imported,
            "matplotlib": backend.imported,
        }
        self.modules: dict[str, Any] = {
            "jax": jax,
            "jax.config": jax_config_module(),
            "jax.lax": jax.lax,
            "jax.lib": jax.lib,
            "jax.random": jax.random,
            "numpy": numpy_view(),
            "scipy": scipy_view(),
            "tensorflow": tensorflow,
            "tensorflow.compat": tensorflow.compat,
            **jaxboard_imports(),
            "matplotlib": backend.matplotlib,
            # Imported at the top for functions that most scripts do not call; may be absent.
            "tensorflow_datasets": View("tensorflow_datasets"),
            "tensorflow_text": View("tensorflow_text"),
        }
        gym = gym_stand_in()
        if gym is not None:
            self.modules["gym"] = gym
        # Parts of Trax that TensorFlow must be imported for; `fixes` says how the script reaches them.
        self.of_importer: dict[tuple[str, str], Any] = {
            ("trax", "trax.trax2keras"): types.SimpleNamespace(AsKeras=None),
            ("trax.fastmath.ops", "trax.fastmath.tf"): types.SimpleNamespace(TF_BACKEND=TensorFlowBackend()),
        }
