"""TensorFlow as Trax's modules see it: the little that most scripts need works before TensorFlow is imported."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

from automap_launch.frontends.trax.files import Files
from automap_launch.frontends.trax.postponed import Seed, is_imported
from automap_launch.frontends.trax.view import Later, View


class _OfTensorFlow:
    """Stands in for a class of TensorFlow while that is not imported: nothing can be an instance of it."""


class TensorFlowView(View):
    """`tensorflow` and `tensorflow.compat.v2`: our own files and seeds, classes to compare with, the rest on demand."""

    def __init__(self, writes: bool, seed: Seed) -> None:
        super().__init__(
            "tensorflow",
            {
                "io": View("tensorflow.io", {"gfile": Files(writes)}),
                "random": View("tensorflow.random", {"set_seed": seed.set_seed}),
            },
        )
        self.compat = View("tensorflow.compat", {"v2": self})

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("TensorShape", "DType") and not is_imported("tensorflow", attribute):
            return _OfTensorFlow
        return super().__getattr__(attribute)


def jaxboard_imports() -> dict[str, Any]:
    """What `trax.jaxboard` takes from inside TensorFlow, by module, imported when a summary is written."""
    writer = "tensorflow.python.summary.writer.event_file_writer"
    return {
        "tensorflow.core.util": types.SimpleNamespace(event_pb2=View("tensorflow.core.util.event_pb2")),
        writer: types.SimpleNamespace(EventFileWriter=Later(writer, "EventFileWriter")),
    }


class TensorFlowBackend(Mapping[str, Any]):
    """The functions of the `tensorflow-numpy` backend by name, imported when one is asked for."""

    def _functions(self) -> Mapping[str, Any]:
        from trax.fastmath.tf import TF_BACKEND

        functions: Mapping[str, Any] = TF_BACKEND
        return functions

    def __getitem__(self, name: str) -> Any:
        return self._functions()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions())

    def __len__(self) -> int:
        return len(self._functions())
