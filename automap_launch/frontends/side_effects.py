"""What a script writes, it writes once: `redirect_writes` sends the files of all other copies of it elsewhere.

The functions of `os`, `io`, `builtins` and `shutil` through which Python code reaches files are replaced; paths are
translated by an `Overlay`, open descriptors are left alone. Libraries that open files in native code (HDF5, sqlite)
are out of reach.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from automap_launch.frontends.overlay import InPlace, Overlay, absolute

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Collective savers: every rank writes its own part of one checkpoint, so their files go where the script says.
COLLECTIVE_WRITERS = ("orbax", "tensorstore")


_active: Overlay | None = None


def active_overlay() -> Overlay | None:
    """Where this process's writes go, for hooks of libraries that write in native code; None: where they are told."""
    return _active


def redirect_writes(
    folder: Path,
    in_place: Sequence[str] = (),
    keep: Sequence[Path] = (),
    shared: bool = False,
    made_elsewhere: Callable[[str], bool] | None = None,
) -> Callable[[], None]:
    """From now on, files that this process opens for writing are made below `folder`.

    Reading such a path finds what was written; renaming, removing and listing agree with it. System folders, caches
    of libraries, devices, pipes and what `tempfile` makes are not concerned.

    Args:
      folder: receives the files, each at its absolute path below it.
      in_place: top-level packages whose writes are left alone (`COLLECTIVE_WRITERS` for workers).
      keep: folders whose files are written in place.
      shared, made_elsewhere: another process runs the same script without redirection; see `Overlay`.

    Returns:
      A function that puts everything back.
    """
    global _active
    _active = Overlay(folder, keep, shared, made_elsewhere)
    redirection = _Redirection(_active, frozenset(in_place))
    put_back = _replace(
        [
            *_making(redirection),
            (shutil, "rmtree", redirection.rmtree),
            (tempfile, "mkdtemp", redirection.mkdtemp),
            *((os, name, getattr(redirection, name)) for name in ("listdir", "scandir")),
            *((os, name, redirection.removing(getattr(os, name), folder=False)) for name in ("remove", "unlink")),
            (os, "rmdir", redirection.removing(os.rmdir, folder=True)),
            *((os, name, redirection.looking(getattr(os, name))) for name in ("stat", "lstat", "access", "readlink")),
            *((os, name, redirection.altering(getattr(os, name))) for name in ("chmod", "utime", "truncate")),
            (os, "chdir", redirection.chdir),
            (os, "getcwd", redirection.getcwd),
        ]
    )

    def undo() -> None:
        global _active
        _active = None
        put_back()

    return undo


def announce_writes(announce: Callable[[str], None], in_place: Sequence[str], keep: Path) -> Callable[[], None]:
    """From now on, `announce` is told of each path that this process makes, before it is there.

    Args:
      in_place, keep: packages, and a folder, whose files are left alone.

    Returns:
      A function that puts everything back.
    """
    return _replace(_making(_Redirection(InPlace(announce, keep), frozenset(in_place))))


def _making(redirection: _Redirection) -> list[tuple[Any, str, Any]]:
    """Replacements of the functions by which something is made that was not there."""
    return [
        (builtins, "open", redirection.open),
        (io, "open", redirection.open),
        (os, "open", redirection.os_open),
        *((os, name, getattr(redirection, name)) for name in ("mkdir", "symlink", "link")),
        *((os, name, redirection.renaming(getattr(os, name))) for name in ("rename", "replace")),
    ]


def _replace(replacements: Sequence[tuple[Any, str, Any]]) -> Callable[[], None]:
    originals = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    for module, name, replacement in replacements:
        setattr(module, name, replacement)

    def put_back() -> None:
        for module, name, original in originals:
            setattr(module, name, original)

    return put_back


class _Scan:
    """What `os.scandir` returns, for a folder merged from two."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Redirection:
    """The replacements. Each does what the original does, with the path that the overlay gives."""

    def __init__(self, overlay: Overlay, in_place: frozenset[str]) -> None:
        self._overlay = overlay
        self._in_place = in_place
        self._open, self._os_open, self._mkdir = builtins.open, os.open, os.mkdir
        self._chdir, self._getcwd = os.chdir, os.getcwd
        self._folder: str | None = None  # the script's current one, where it is made below the root only
        self._listdir, self._scandir = os.listdir, os.scandir
        self._rmtree, self._symlink, self._link = shutil.rmtree, os.symlink, os.link
        self._mkdtemp = tempfile.mkdtemp

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self._is_path(file):
            file = self._target(file, mode)
        return self._open(file, mode, *args, **kwargs)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None or not self._is_path(path):
            return self._os_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITING:
            target = self._read(path)
        elif flags & os.O_EXCL and self._called_by({"tempfile"}):
            self._overlay.keep_temporary(absolute(path))
            target = path
        elif not self._redirects(path):
            target = path
        elif flags & os.O_EXCL:
            target = self._overlay.making(absolute(path))
        elif flags & os.O_TRUNC:
            target = self._overlay.creating(absolute(path))
        else:
            target = self._overlay.changing(absolute(path))
        return self._os_open(target, flags, mode)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or not self._redirects(path):
            self._mkdir(path, mode, dir_fd=dir_fd)
        else:
            self._mkdir(self._overlay.making(absolute(path)), mode)

    def mkdtemp(self, *args: Any, **kwargs: Any) -> str:
        made: str = self._mkdtemp(*args, **kwargs)
        self._overlay.keep(os.path.abspath(os.fsdecode(made)))
        return made

    def chdir(self, path: Any) -> None:
        if isinstance(path, int):
            self._chdir(path)
            self._folder = None
            return
        where = absolute(path)
        meant = self._overlay.reading(where)
        self._chdir(meant)
        self._folder = where if meant != where else None

    def getcwd(self) -> str:
        return self._folder or self._getcwd()

    def symlink(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        target = self._overlay.creating(absolute(dst)) if not kwargs and self._redirects(dst) else dst
        self._symlink(src, target, *args, **kwargs)

    def link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        if kwargs or not self._redirects(dst):
            self._link(src, dst, **kwargs)
        else:
            self._link(self._overlay.changing(absolute(src)), self._overlay.creating(absolute(dst)))

    def listdir(self, path: Any = ".") -> list[Any]:
        names = None if isinstance(path, int) else self._overlay.listing(absolute(path or "."))
        if names is None:
            return self._listdir(path)
        return [os.fsencode(n) for n in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: Any = ".") -> Any:
        names = None if isinstance(path, int) else self._overlay.listing(absolute(path or "."))
        if names is None:
            return self._scandir(path)
        return _Scan(entry for folder in sorted(set(names.values())) for entry in self._entries(folder, names))

    def rmtree(self, path: Any, *args: Any, **kwargs: Any) -> None:
        if not self._is_path(path) or not self._redirects(path):
            self._rmtree(path, *args, **kwargs)
            return
        where = absolute(path)
        if os.path.lexists(self._overlay.reading(where)):
            self._overlay.remove_tree(where)
        elif not (kwargs.get("ignore_errors") or (args and args[0])):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))

    def renaming(self, original: Callable[..., None]) -> Callable[..., None]:
        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            if kwargs or not (self._redirects(src) or self._redirects(dst)):
                original(src, dst, **kwargs)
                return
            source, target = absolute(src), absolute(dst)
            real = self._overlay.changing(source)
            if os.path.isdir(real) and self._overlay.exists_below(source):
                self._copy_up(source)
            try:
                original(real, self._overlay.creating(target))
            except OSError as error:
                if error.errno != errno.EXDEV:  # a temporary file may lie on another file system than the root
                    raise
                shutil.copy2(real, self._overlay.creating(target))
                os.unlink(real)
            if self._overlay.concerns(source):
                self._overlay.remove_tree(source)

        return rename

    def removing(self, original: Callable[..., None], folder: bool) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None or not self._redirects(path):
                original(path, dir_fd=dir_fd)
            else:
                self._overlay.remove(absolute(path), folder)

        return remove

    def looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is not None or not self._is_path(path):
                return original(path, *args, **kwargs)
            return original(self._read(path), *args, **kwargs)

        return look

    def altering(self, original: Callable[..., None]) -> Callable[..., None]:
        def alter(path: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("dir_fd") is None and self._is_path(path) and self._redirects(path):
                path = self._overlay.changing(absolute(path))
            original(path, *args, **kwargs)

        return alter

    def _target(self, file: Any, mode: str) -> Any:
        if not set(mode) & set("wax+"):
            return self._read(file)
        if not self._redirects(file):
            return file
        where = absolute(file)
        if "x" in mode:
            return self._overlay.making(where)
        return self._overlay.creating(where) if "w" in mode else self._overlay.changing(where)

    def _read(self, path: Any) -> Any:
        """`path` as it was given, unless it means another file: error messages then show what the script wrote."""
        where = absolute(path)
        meant = self._overlay.reading(where)
        if meant == where:
            return path if self._folder is None else where
        return os.fsencode(meant) if isinstance(path, bytes) else meant

    def _redirects(self, path: Any) -> bool:
        return self._is_path(path) and self._overlay.concerns(absolute(path)) and not self._called_in_place()

    def _called_in_place(self) -> bool:
        """Whether a package that writes in place asks, or `tempfile`, whose names are nobody else's."""
        return self._called_by({"tempfile", *self._in_place})

    @staticmethod
    def _called_by(packages: Collection[str]) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_globals.get("__name__", "").partition(".")[0] in packages:
                return True
            frame = frame.f_back
        return False

    def _entries(self, folder: str, names: dict[str, str]) -> Iterator[Any]:
        with self._scandir(folder) as entries:
            yield from (entry for entry in entries if names.get(entry.name) == folder)

    def _copy_up(self, source: str) -> None:
        """Copies a folder that is to be renamed: below the root lies only what was written of it."""
        for parent, folders, files in os.walk(source):
            for name in (*folders, *files):
                self._overlay.changing(os.path.join(parent, name))

    @staticmethod
    def _is_path(path: Any) -> bool:
        return isinstance(path, (str, bytes, os.PathLike))
