"""Changes to Trax's modules once they are imported, each with its reason. What Trax computes stays the same."""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import os
import random
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Change = Callable[[types.ModuleType], None]


def changes(writes: bool) -> dict[str, Change]:
    """By the name of the module.

    Args:
      writes: as of `hook.install`.
    """
    found: dict[str, Change] = {
        "trax": functools.partial(_import_on_demand, {"trax2keras": None, "AsKeras": "trax2keras"}),
        "trax.fastmath": functools.partial(_import_on_demand, {"tf": None}),
        "trax.fastmath.numpy": _compare_no_arrays,
        "trax.layers.assert_shape": _look_one_frame_up,
        "trax.layers.core": _solve_for_each_vector,
        "trax.supervised.training": _one_device_and_one_seed,
        "trax.supervised.trainer_lib": _same_keys_at_every_step,
    }
    found["trax.jaxboard"] = _close_at_the_end if writes else _write_no_summaries
    return found


def _import_on_demand(attributes: Mapping[str, str | None], package: types.ModuleType) -> None:
    """Submodules (None), and names in one, that the package had imported itself, but for the time that takes.

    They need TensorFlow, which takes seconds; `trax.AsKeras` and `fastmath.tf` are there when they are asked for.
    """
    for name in attributes:
        vars(package).pop(name, None)

    def find(name: str) -> Any:
        if name not in attributes:
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package.__name__}.{attributes[name] or name}")
        return module if attributes[name] is None else getattr(module, name)

    package.__getattr__ = find  # type: ignore[method-assign]


class _Copied(list[Any]):
    """The `copy_from_tree` of `tree_unflatten`: trees to compare with, none of which is an array."""

    def __contains__(self, tree: Any) -> bool:
        return not hasattr(tree, "dtype") and super().__contains__(tree)


def _compare_no_arrays(module: Any) -> None:
    """`tree_unflatten` asks whether an array is in `[None, ()]`: today's JAX refuses to compare an array with a tuple.

    Every `Loop` that resumes from a checkpoint passes here.
    """
    unflatten = module.tree_unflatten

    @functools.wraps(unflatten)
    def tree_unflatten(flat: Any, tree: Any, copy_from_tree: Sequence[Any] | None = None) -> Any:
        return unflatten(flat, tree, None if copy_from_tree is None else _Copied(copy_from_tree))

    module.tree_unflatten = tree_unflatten


def _look_one_frame_up(module: Any) -> None:
    """`assert_shape` asks for the whole stack with its source lines, for each class it decorates, to use one frame.

    That takes most of the 10 to 30 seconds that `import trax` takes on a current Python.
    """
    module.inspect = types.SimpleNamespace(**{**vars(inspect), "stack": _nearest_frames})


def _nearest_frames(context: int = 1) -> list[inspect.FrameInfo]:
    del context
    caller = sys._getframe(1)
    frames = [frame for frame in (caller, caller.f_back) if frame is not None]
    return [inspect.FrameInfo(f, f.f_code.co_filename, f.f_lineno, f.f_code.co_name, None, None) for f in frames]


def _solve_for_each_vector(module: Any) -> None:
    """`log_gaussian_pdf` solves a stack of systems for a vector each, which JAX now takes for one matrix."""
    module.jnp = _Numpy(module.jnp)


class _Numpy:
    """Trax's `numpy` of the chosen backend, with a `linalg` whose `solve` takes vectors."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def linalg(self) -> Any:
        real = self._real.linalg
        return types.SimpleNamespace(
            slogdet=real.slogdet, solve=lambda matrices, vectors: real.solve(matrices, vectors[..., None])[..., 0]
        )


def _one_device_and_one_seed(module: Any) -> None:
    """A script that names its devices (`n_devices=8`) means all there are: the plan's, which look like one.

    Without a seed of its own, Trax draws one from the operating system. Here it is another one in every run, and the
    same on all ranks; Python's `random`, from which layers draw what may end up in the program, goes on as it was.
    """
    initialise = module.init_host_and_devices

    @functools.wraps(initialise)
    def init_host_and_devices(n_devices: int | None = None, random_seed: int | None = None) -> Any:
        here = module.fastmath.local_device_count()
        if n_devices is not None and n_devices > here == 1:
            module._log(f"n_devices={n_devices}: automap-launch spreads the step over all devices, as its plan says")
            n_devices = here
        if random_seed is not None:
            return initialise(n_devices, random_seed)
        state = random.getstate()
        try:
            return initialise(n_devices, _seed_of_this_run())
        finally:
            random.setstate(state)

    module.init_host_and_devices = init_host_and_devices


def _seed_of_this_run() -> int | None:
    """Derived from the run folder; None while the step is captured, where it does not matter."""
    folder = os.environ.get("AUTOMAP_RUN_DIR")
    return None if folder is None else zlib.crc32(folder.encode()) % 2**31


def _same_keys_at_every_step(module: Any) -> None:
    """`Trainer` passes its key in an array at first and in a list from then on, which are two programs.

    The first would be another than the captured one, and run on one device.
    """
    initialise = module.Trainer.__init__

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        initialise(self, *args, **kwargs)
        if self.n_devices == 1:
            self._rngs = list(self._rngs)

    module.Trainer.__init__ = __init__


def _close_at_the_end(module: Any) -> None:
    """A writer that is open when Python ends is closed by its `__del__`, which waits for a thread that is gone.

    `trainer_lib.Trainer` leaves its writers open unless the script closes it.
    """
    initialise = module.SummaryWriter.__init__
    writers: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        initialise(self, *args, **kwargs)
        writers.add(self)

    def close() -> None:
        for writer in list(writers):
            writer.close()

    module.SummaryWriter.__init__ = __init__
    atexit.register(close)


def _write_no_summaries(module: Any) -> None:
    """Summaries are written in native code, out of reach of what keeps a script's copies apart."""
    module.SummaryWriter = SilentWriter


class SilentWriter:
    """A `trax.jaxboard.SummaryWriter` that reads the values that it is given, as all ranks must, and writes nothing."""

    def __init__(self, log_dir: str, enable: bool = True) -> None:
        del log_dir, enable

    def _read(self, tag: str, value: Any, *_: Any, **__: Any) -> None:
        del tag
        np.asarray(value)

    scalar = image = images = audio = histogram = _read

    def add_summary(self, *_: Any) -> None:
        """Nothing to read."""

    def text(self, *_: Any, **__: Any) -> None:
        """Nothing to read."""

    def plot(self, tag: str, plot: Any, step: int | None = None, close_plot: bool = True) -> None:
        del tag, step
        if close_plot:
            plot.close()

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """Nothing is open."""
