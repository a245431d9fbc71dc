"""Where the packaged configs and recipes lie (in the package in a wheel, beside it in a source tree), and the cache."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def conf_folder() -> Path:
    """Folder of the Hydra config groups."""
    return _folder("conf")


def recipes_folder() -> Path:
    """Folder of the packaged recipes and of the training scripts they run."""
    return _folder("recipes")


def cache_folder() -> Path:
    """Folder of what is remembered from one launch to the next, for this user; it need not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "automap-launch"
