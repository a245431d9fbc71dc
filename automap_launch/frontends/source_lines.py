"""The user's own line behind a location of a module, or behind a stack of Python frames."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

from automap_launch.train_step import SourceLine

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
# Recipes ship inside the package, yet are scripts like the user's.
_users_folders = {_PACKAGE + "recipes" + os.sep}
_FRAME = re.compile(r'"((?:[^"\\]|\\.)+)":(\d+)(?::\d+)?')


@functools.cache
def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(sorted({str(Path(folder).resolve()) + os.sep for folder in folders} | {_PACKAGE}))


def add_users_folder(folder: Path) -> None:
    """Counts what lies below `folder` as the user's own, even if it was installed as a package."""
    _users_folders.add(str(folder.resolve()) + os.sep)
    is_users.cache_clear()
    source_of.cache_clear()


@functools.cache
def is_users(file: str) -> bool:
    """Whether `file` is the user's own: no library, not Python itself, not this package."""
    if file.startswith("<"):
        return False
    path = str(Path(file).resolve())
    if any(path.startswith(folder) and not _installed(path[len(folder) :]) for folder in _users_folders):
        return True
    return not _installed(path) and not path.startswith(_foreign_folders())


def _installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path


@functools.lru_cache(maxsize=100_000)
def source_of(location: str) -> SourceLine | None:
    """First frame of the user's own in an MLIR location, which names the innermost frame first."""
    for file, line in _FRAME.findall(location):
        if is_users(file):
            return SourceLine(file, int(line))
    return None


def current_line() -> SourceLine | None:
    """Innermost line of the user's own that is being executed."""
    frame = sys._getframe(1)
    for candidate, line in traceback.walk_stack(frame):
        if is_users(candidate.f_code.co_filename):
            return SourceLine(candidate.f_code.co_filename, line)
    return None
