"""Files that TensorFlow and HDF5 open in native code go where the process's other writes go.

While a step is captured, and on all ranks but the first, what the script writes must not land where it says
(`frontends.side_effects`). Checkpoints, SavedModels, event files and weights do not pass by Python's own `open`.
"""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from automap_launch.frontends.import_hook import when_imported
from automap_launch.frontends.overlay import Overlay, absolute
from automap_launch.frontends.side_effects import active_overlay
from automap_launch.frontends.tensorflow import tf_internals


def install() -> None:
    """Puts the hooks in place; they do nothing while writes are not redirected."""
    tf_internals.replace_file_functions(FileFunctions)
    tf_internals.replace_fingerprint_functions(lambda real: PathFunctions(real, read_path))
    tf_internals.replace_saving_functions(lambda real: PathFunctions(real, write_path))
    tf_internals.hook_file_operations(_translated)
    when_imported("h5py", _hook_hdf5)


def read_path(path: str) -> str:
    """The file that a reader of `path` means."""
    overlay = active_overlay()
    return path if overlay is None or _is_remote(path) else overlay.reading(absolute(path))


def prefix_path(path: str) -> str:
    """The beginning of the names of files that a reader means by it: a checkpoint's."""
    overlay = active_overlay()
    if overlay is None or _is_remote(path):
        return path
    upper = overlay.upper(absolute(path))
    folder, name = os.path.split(upper)
    written = os.path.isdir(folder) and any(entry.startswith(name) for entry in os.listdir(folder))
    return upper if written else path


def write_path(path: str) -> str:
    """The file that a writer to `path` is to make."""
    overlay = active_overlay()
    if overlay is None or _is_remote(path) or not overlay.concerns(absolute(path)):
        return path
    upper = overlay.upper(absolute(path))
    os.makedirs(os.path.dirname(upper), exist_ok=True)
    return upper


class FileFunctions:
    """TensorFlow's native file functions (`real`), with paths translated."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def FileExists(self, path: Any) -> Any:  # noqa: N802  # TensorFlow's names
        return self._real.FileExists(_text(path, read_path))

    def IsDirectory(self, path: Any) -> Any:  # noqa: N802
        return self._real.IsDirectory(_text(path, read_path))

    def Stat(self, path: Any) -> Any:  # noqa: N802
        return self._real.Stat(_text(path, read_path))

    def BufferedInputStream(self, path: Any, *args: Any) -> Any:  # noqa: N802
        return self._real.BufferedInputStream(_text(path, read_path), *args)

    def GetChildren(self, path: Any) -> Any:  # noqa: N802
        overlay, text = active_overlay(), _plain(path)
        names = None if overlay is None or _is_remote(text) else _listing(overlay, text)
        return self._real.GetChildren(path) if names is None else names

    def GetMatchingFiles(self, pattern: Any) -> Any:  # noqa: N802
        overlay, text = active_overlay(), _plain(pattern)
        found = list(self._real.GetMatchingFiles(pattern))
        if overlay is None or _is_remote(text):
            return found
        folder, name = os.path.split(text)
        names = _listing(overlay, folder or ".") or ()
        return sorted({*found, *(os.path.join(folder, n) for n in names if fnmatch.fnmatch(n, name))})

    def WritableFile(self, path: Any, mode: Any, *args: Any) -> Any:  # noqa: N802
        return self._real.WritableFile(_text(path, write_path), mode, *args)

    def CreateDir(self, path: Any) -> Any:  # noqa: N802
        # Its parent may be there for the script alone.
        return self._real.RecursivelyCreateDir(_text(path, write_path))

    def RecursivelyCreateDir(self, path: Any) -> Any:  # noqa: N802
        return self._real.RecursivelyCreateDir(_text(path, write_path))

    def RenameFile(self, source: Any, target: Any, *args: Any) -> Any:  # noqa: N802
        return self._real.RenameFile(_text(source, write_path), _text(target, write_path), *args)

    def CopyFile(self, source: Any, target: Any, *args: Any) -> Any:  # noqa: N802
        return self._real.CopyFile(_text(source, read_path), _text(target, write_path), *args)

    def DeleteFile(self, path: Any) -> Any:  # noqa: N802
        if active_overlay() is None or _is_remote(_plain(path)):
            return self._real.DeleteFile(path)
        return os.remove(_plain(path))

    def DeleteRecursively(self, path: Any) -> Any:  # noqa: N802
        overlay, text = active_overlay(), _plain(path)
        if overlay is None or _is_remote(text) or not overlay.concerns(absolute(text)):
            return self._real.DeleteRecursively(path)
        return overlay.remove_tree(absolute(text))


class PathFunctions:
    """Native functions (of the module `real`) whose first argument is a path, which is translated."""

    def __init__(self, real: Any, translate: Callable[[str], str]) -> None:
        self._real = real
        self._translate = translate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found) or isinstance(found, type):
            return found

        @functools.wraps(found)
        def translated(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, (str, bytes)):
                path = _text(path, self._translate)
            return found(path, *args, **kwargs)

        return translated


# By the name of an eager operation: for each of its first arguments, how a path in it is translated.
_OPERATIONS: dict[str, tuple[Callable[[str], str] | None, ...]] = {
    "save_v2": (write_path,),
    "merge_v2_checkpoints": (write_path, write_path),
    "restore_v2": (prefix_path,),
    "read_file": (read_path,),
    "write_file": (write_path,),
    "create_summary_file_writer": (None, write_path),
    "CheckpointReader": (prefix_path,),
}


def _translated(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """An operation with the paths among its first arguments translated."""
    translations = _OPERATIONS[name]

    @functools.wraps(real)
    def operation(*args: Any, **kwargs: Any) -> Any:
        if active_overlay() is None or not tf_internals.executing_eagerly():
            return real(*args, **kwargs)
        given = list(args)
        for index, (value, translate) in enumerate(zip(args, translations, strict=False)):
            if translate is not None:
                given[index] = _tensor(value, translate)
        for key in ("prefix", "filename", "logdir"):
            if key in kwargs and translations[-1] is not None:
                kwargs[key] = _tensor(kwargs[key], translations[-1])
        return real(*given, **kwargs)

    return operation


def _tensor(value: Any, translate: Callable[[str], str]) -> Any:
    """A path, a tensor of one, or of several, translated."""
    if isinstance(value, (str, bytes)):
        return _text(value, translate)
    paths = tf.convert_to_tensor(value).numpy()
    if isinstance(paths, bytes):
        return tf.constant(translate(os.fsdecode(paths)))
    return tf.constant([translate(os.fsdecode(path)) for path in paths])


def _text(path: Any, translate: Callable[[str], str]) -> Any:
    changed = translate(_plain(path))
    return os.fsencode(changed) if isinstance(path, bytes) else changed


def _plain(path: Any) -> str:
    return os.fsdecode(path)


def _is_remote(path: str) -> bool:
    return "://" in path


def _listing(overlay: Overlay, path: str) -> list[str] | None:
    """Names in a folder of which a part lies elsewhere; None where nothing does, or there is no such folder."""
    try:
        names = overlay.listing(absolute(path))
    except OSError:
        return None
    return None if names is None else list(names)


def _hook_hdf5(module: Any) -> None:
    real = module.File.__init__

    @functools.wraps(real)
    def init(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if isinstance(name, (str, bytes, os.PathLike)):
            name = _text(os.fspath(name), read_path if mode == "r" else write_path)
        real(self, name, mode, *args, **kwargs)

    module.File.__init__ = init
