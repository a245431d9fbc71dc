"""Runs training scripts in processes of their own, plainly and under the launcher, and reads what they dumped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.equality import load_dump

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart" / "train.py"
STYLES = ROOT / "tests" / "styles"
HELPERS = frozenset({"common", "classifier", "dropout"})  # imported by the scripts of that folder, no scripts

_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def style_scripts() -> dict[str, Path]:
    """The scripts of `tests/styles`, by name."""
    return {path.stem: path for path in sorted(STYLES.glob("*.py")) if path.stem not in HELPERS}


def run_script(
    script: Path, arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs a script as its user would, with `folder` as its current one. The exit code is not looked at."""
    return _run([sys.executable, str(script), *arguments], folder, env, timeout)


def plain_dump(
    script: Path, arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> dict[str, np.ndarray]:
    """The losses and the final state of a script run as it is, on one device."""
    file = _fresh(folder, "plain")
    done = run_script(script, [*arguments, "--dump", str(file)], folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    return load_dump(file)


@dataclass(frozen=True)
class Launched:
    """A launch: its exit code, its `summary.json`, the terminal's text, and the script's dump if it wrote one."""

    exit_code: int
    summary: dict[str, Any]
    terminal: str
    dump: dict[str, np.ndarray] | None


def launch(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> Launched:
    """Runs an unmodified script by `automap-launch --json OVERRIDES -- SCRIPT ARGUMENTS --dump FILE`."""
    file = _fresh(folder, "launched")
    command = [sys.executable, "-m", "automap_launch", "--json", "tracking=none", *overrides]
    done = _run([*command, "--", str(script), *arguments, "--dump", str(file)], folder, env, timeout)
    summary_file = Path(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else None
    summary = json.loads((folder / summary_file).read_text()) if summary_file else {}
    return Launched(done.returncode, summary, done.stderr, load_dump(file) if file.exists() else None)


def _run(
    command: Sequence[str], folder: Path, env: Mapping[str, str] | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _fresh(folder: Path, kind: str) -> Path:
    return folder / f"{kind}_{len(list(folder.glob(f'{kind}_*.npz')))}.npz"
