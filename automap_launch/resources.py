"""Where the packaged configs and recipes lie: inside the package in a wheel, beside it in a source tree."""

from __future__ import annotations

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
