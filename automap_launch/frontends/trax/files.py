"""`tf.io.gfile` for the file system, written in Python.

Trax reads and writes its checkpoints through TensorFlow's native file layer. In Python they pass by what keeps the
files of a script's several copies apart (see `side_effects`), and TensorFlow need not be imported for them. Paths of
remote storage (`gs://...`) stay TensorFlow's.
"""

from __future__ import annotations

import glob
import os
import shutil
from typing import Any


class Files:
    """Stands in for the module `tf.io.gfile`.

    Args:
      writes: whether this process is the one copy of the script that writes. Local files are kept apart elsewhere;
        what another copy writes to remote storage is dropped.
    """

    def __init__(self, writes: bool) -> None:
        self._writes = writes

    def GFile(self, name: Any, mode: str = "r") -> Any:  # noqa: N802 (TensorFlow's name)
        if not _is_remote(name):
            return open(name, mode, encoding=None if "b" in mode else "utf-8")
        if "r" not in mode and not self._writes:
            return open(os.devnull, mode)
        return _tensorflow().GFile(name, mode)

    def exists(self, path: Any) -> bool:
        return bool(_tensorflow().exists(path)) if _is_remote(path) else os.path.exists(path)

    def isdir(self, path: Any) -> bool:
        return bool(_tensorflow().isdir(path)) if _is_remote(path) else os.path.isdir(path)

    def listdir(self, path: Any) -> list[str]:
        return list(_tensorflow().listdir(path)) if _is_remote(path) else os.listdir(path)

    def glob(self, pattern: Any) -> list[str]:
        return list(_tensorflow().glob(pattern)) if _is_remote(pattern) else glob.glob(pattern)

    def makedirs(self, path: Any) -> None:
        if not _is_remote(path):
            os.makedirs(path, exist_ok=True)
        elif self._writes:
            _tensorflow().makedirs(path)

    def remove(self, path: Any) -> None:
        if not _is_remote(path):
            os.remove(path)
        elif self._writes:
            _tensorflow().remove(path)

    def rmtree(self, path: Any) -> None:
        if not _is_remote(path):
            shutil.rmtree(path)
        elif self._writes:
            _tensorflow().rmtree(path)

    def rename(self, source: Any, target: Any, overwrite: bool = False) -> None:
        if _is_remote(source) or _is_remote(target):
            if self._writes:
                _tensorflow().rename(source, target, overwrite=overwrite)
            return
        if not overwrite and os.path.exists(target):
            raise FileExistsError(f"{target} exists and is not to be overwritten by {source}")
        os.replace(source, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(_tensorflow(), name)


def _is_remote(path: Any) -> bool:
    return "://" in os.fsdecode(path)


def _tensorflow() -> Any:
    import tensorflow

    return tensorflow.io.gfile
