"""What of Trax no plan can train, refused where the script asks for it."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn

from automap_launch.errors import CaptureError
from automap_launch.frontends.source_lines import current_line

Change = Callable[[types.ModuleType], None]


def changes() -> dict[str, Change]:
    """By the name of the module that refuses."""
    return {
        "trax.fastmath.ops": _refuse_tensorflow,
        "trax.supervised.training": _refuse_layer_by_layer,
    }


def _refuse_tensorflow(module: Any) -> None:
    module._backend_dict[module.Backend.TFNP] = _Refused()


class _Refused(dict[str, Any]):
    """The functions of a backend that is refused as soon as one of them is asked for."""

    def __getitem__(self, name: str) -> NoReturn:
        _refuse(
            "Trax's `tensorflow-numpy` backend runs each operation in TensorFlow; a plan is made for a JAX program",
            hint="leave out `backend.name = 'tensorflow-numpy'` (or `use_backend`): Trax computes the same with JAX",
        )

    def __contains__(self, name: object) -> bool:
        return bool(self[str(name)])


def _refuse_layer_by_layer(module: Any) -> None:
    initialise = module.Loop.__init__
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if signature.bind(self, *args, **kwargs).arguments.get("use_memory_efficient_trainer"):
            _refuse(
                "use_memory_efficient_trainer=True runs every layer, and its update, as a function of its own with "
                "the weights in the host's memory: there is no train step to make a plan for",
                hint="leave it out: a plan spreads weights and optimizer state over the devices, which saves memory",
            )
        if module.base.N_WEIGHTS_SHARDS > 1:
            _refuse(
                f"n_weights_shards={module.base.N_WEIGHTS_SHARDS} has Trax itself shard the weights over its devices, "
                "of which it sees one",
                hint="leave it out: a plan decides how weights are sharded",
            )
        initialise(self, *args, **kwargs)

    module.Loop.__init__ = __init__


def _refuse(message: str, hint: str) -> NoReturn:
    line = current_line()
    raise CaptureError(
        message, hint=hint, file=None if line is None else line.file, line=None if line is None else line.line
    )
