"""A wheel holds all that a launch needs: it works from any folder, with no source tree beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed from a wheel, and nothing else."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return site


def automap(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "automap_launch", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_packaged_recipe_is_planned_from_any_folder(installed: Path, tmp_path: Path) -> None:
    settings = ["mode=plan", "cluster=v100_1x8", "~cluster.devices", "search=heuristic", "tracking=none"]
    done = automap(installed, tmp_path, "+recipe=quickstart", *settings)
    assert done.returncode == 0, done.stderr
    assert str(installed / "automap_launch" / "recipes" / "quickstart" / "train.py") in done.stdout


def test_everything_lies_under_the_package(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names - {"bin"} == {"automap_launch"}
