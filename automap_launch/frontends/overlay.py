"""`Overlay`: which file a path means when writes go to another folder.

A path that is written is kept at the same place below the overlay's root, and from then on reading it finds it there.
What is removed stays hidden. Files outside the root are never changed.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_CLOCK_SECONDS = 60.0  # by which the clocks of hosts and of file servers may differ
_DATA_CACHES = ("nltk_data", "scikit_learn_data", "tensorflow_datasets")

# The functions as they are before `side_effects` replaces them: what happens in here is never redirected again.
_lstat, _mkdir, _listdir, _unlink, _rmdir, _copy = os.lstat, os.mkdir, os.listdir, os.unlink, os.rmdir, shutil.copy2


class Overlay:
    """Maps paths to the files they mean. All paths are absolute strings here, see `absolute`.

    Args:
      root: folder that receives what is written; made when first needed.
      keep: folders whose files are written in place.
      shared: another process writes the same paths in place at the same time. That a path exists may be its doing,
        so making it anew is no error.
      made_elsewhere: whether that other process has made a path: then it is not there yet for the script of this one.
    """

    def __init__(
        self,
        root: Path,
        keep: Sequence[Path] = (),
        shared: bool = False,
        made_elsewhere: Callable[[str], bool] | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self._shared = shared
        self._made_elsewhere = made_elsewhere
        self._begun = time.time()
        self._kept = [self.root, *map(os.path.abspath, keep), *_system_folders()]
        self._removed: set[str] = set()
        self._temporary: set[str] = set()

    def keep(self, path: str) -> None:
        """From now on `path` and what is below it are written in place."""
        self._kept.append(path)

    def keep_temporary(self, path: str) -> None:
        """As `keep`, for a file that `tempfile` makes: it is nobody else's, wherever it lies."""
        self._temporary.add(path)

    def concerns(self, path: str) -> bool:
        """Whether writing to `path` is redirected. Devices, pipes, system folders and libraries' caches are not."""
        if any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in self._kept):
            return False
        if path in self._temporary or "/__pycache__/" in path or _is_library_cache(path):
            return False
        kind = _kind(path)
        return kind is None or stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind)

    def upper(self, path: str) -> str:
        """Where `path` is kept below the root."""
        return self.root + path

    def reading(self, path: str) -> str:
        """The file that `path` means to a reader; one that does not exist where it was removed."""
        if not self.concerns(path):
            return path
        upper = self.upper(path)
        return upper if _kind(upper) is not None or self.hidden(path) else path

    def creating(self, path: str) -> str:
        """The file that `path` means to a writer who does not care for what is there. Its folder is made.

        Raises:
          FileNotFoundError: the folder of `path` does not exist for the script either.
        """
        if not self.concerns(path):
            return path
        self._make_folder(os.path.dirname(path))
        return self.upper(path)

    def making(self, path: str) -> str:
        """As `creating`, for something that must not be there yet.

        Raises:
          FileExistsError: it is.
        """
        if self.concerns(path) and not self._shared and self.exists_below(path):
            raise FileExistsError(17, "File exists", path)
        return self.creating(path)

    def changing(self, path: str) -> str:
        """The file that `path` means to a writer who goes on from what is there, which is copied first."""
        if not self.concerns(path):
            return path
        upper, kind = self.upper(path), _kind(path)
        if _kind(upper) is None and kind is not None and not self.hidden(path):
            if stat.S_ISDIR(kind):
                self._make_folder(path)
            else:
                self._make_folder(os.path.dirname(path))
                _copy(path, upper, follow_symlinks=stat.S_ISREG(kind))
        return self.creating(path) if path != "/" else upper

    def remove(self, path: str, folder: bool) -> None:
        """Removes a file, or an empty folder, for the script's eyes.

        Raises:
          FileNotFoundError, NotADirectoryError, OSError: as `os.unlink` and `os.rmdir` do.
        """
        upper = self.upper(path)
        if _kind(upper) is not None:
            (_rmdir if folder else _unlink)(upper)
        elif not self.exists_below(path):
            (_rmdir if folder else _unlink)(upper)  # raises what the script expects
        self._removed.add(path)

    def remove_tree(self, path: str) -> None:
        """Removes a folder and all in it for the script's eyes."""
        shutil.rmtree(self.upper(path), ignore_errors=True)
        self._removed.add(path)

    def hidden(self, path: str) -> bool:
        """Whether the file outside the root does not count: it or a folder above it was removed, or it is another
        process's."""
        if self._removed and (
            path in self._removed or any(str(parent) in self._removed for parent in Path(path).parents)
        ):
            return True
        return self._made_elsewhere is not None and self._changed_lately(path) and self._made_elsewhere(path)

    def exists_below(self, path: str) -> bool:
        """Whether `path` exists outside the root and was not removed."""
        return _kind(path) is not None and not self.hidden(path)

    def listing(self, path: str) -> dict[str, str] | None:
        """Name -> folder that holds the entry, for each entry of the folder `path`; None where nothing is merged.

        Raises:
          FileNotFoundError, NotADirectoryError: as `os.listdir` does.
        """
        if not self.concerns(path):
            return None
        upper = self.upper(path)
        above, below = _kind(upper) is not None, self.exists_below(path)
        others = self._made_elsewhere is not None and self._changed_lately(path)
        if not above and below and not others and not any(removed.startswith(path) for removed in self._removed):
            return None
        names: dict[str, str] = {}
        if below:
            names = {n: path for n in _listdir(path) if not self.hidden(os.path.join(path, n))}
        if above or not below:
            names.update(dict.fromkeys(_listdir(upper), upper))
        return names

    def _changed_lately(self, path: str) -> bool:
        """Whether a file, or what a folder holds, may have been made since this process began. Most were not, and
        asking others about them would take time."""
        try:
            return _lstat(path).st_ctime > self._begun - _CLOCK_SECONDS
        except OSError:
            return False

    def _make_folder(self, path: str) -> None:
        upper = self.upper(path)
        if _kind(upper) is not None:
            return
        if not self.exists_below(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        # Not os.makedirs: it would pass through the replaced os.mkdir.
        missing = [upper]
        while _kind(os.path.dirname(missing[-1])) is None:
            missing.append(os.path.dirname(missing[-1]))
        for folder in reversed(missing):
            try:
                _mkdir(folder)
            except FileExistsError:  # another thread was faster
                continue


class InPlace(Overlay):
    """For the process that writes where the script says: `announce` is told of every path before it is made.

    Args:
      keep: folders that nobody needs to know of.
    """

    def __init__(self, announce: Callable[[str], None], keep: Path) -> None:
        super().__init__(keep)
        self._announce = announce

    def upper(self, path: str) -> str:
        return path

    def creating(self, path: str) -> str:
        if self.concerns(path) and _kind(path) is None:
            self._announce(path)
        return path

    def remove_tree(self, path: str) -> None:
        """What was renamed is gone."""


def absolute(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Absolute path as a string, `..` resolved, symbolic links left."""
    return os.path.abspath(os.fsdecode(path))


def _kind(path: str) -> int | None:
    """File mode of `path` itself; None when there is nothing."""
    try:
        return _lstat(path).st_mode
    except OSError:
        return None


def _system_folders() -> list[str]:
    folders = ["/dev", "/proc", "/sys", sys.prefix, sys.base_prefix]
    cache = os.environ.get("XDG_CACHE_HOME")
    return [*folders, cache] if cache else folders


def _is_library_cache(path: str) -> bool:
    """Hidden folders of the home folder, and the usual data caches: shared by programs, not written by the script."""
    home = os.path.expanduser("~").rstrip("/") + "/"
    if not path.startswith(home):
        return False
    first = path[len(home) :].split("/", 1)[0]
    inside = os.getcwd().startswith(home + first)
    return (first.startswith(".") or first in _DATA_CACHES) and not inside
