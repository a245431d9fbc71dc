"""What Trax does to other packages while it is imported, put off until these are: they are slow to import.

TensorFlow is given its seed and matplotlib its backend then, by whomever they are imported.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from automap_launch.frontends.trax.view import View


class Seed:
    """The seed that Trax gives to TensorFlow's random numbers."""

    def __init__(self) -> None:
        self._value: int | None = None

    def set_seed(self, seed: int) -> None:
        """Stands in for `tf.random.set_seed`."""
        self._value = seed
        if is_imported("tensorflow", "random"):
            self.imported(sys.modules["tensorflow"])

    def imported(self, tensorflow: types.ModuleType) -> None:
        if self._value is not None:
            tensorflow.random.set_seed(self._value)


class Backend:
    """The plotting backend that `trax.jaxboard` chooses: none that needs a screen."""

    def __init__(self) -> None:
        self._name: str | None = None
        self.matplotlib = View("matplotlib", {"use": self.use, "pyplot": View("matplotlib.pyplot")})

    def use(self, name: str) -> None:
        """Stands in for `matplotlib.use`."""
        self._name = name
        if is_imported("matplotlib", "use"):
            self.imported(sys.modules["matplotlib"])

    def imported(self, matplotlib: types.ModuleType) -> None:
        if self._name is not None:
            matplotlib.use(self._name)


def is_imported(module: str, attribute: str) -> bool:
    """Whether the module is imported, at least as far as `attribute`."""
    found: Any = sys.modules.get(module)
    return found is not None and hasattr(found, attribute)
