"""Checks that need eight devices run in a process of their own: the number of CPU devices is set once a process.

A file of checks is a module of functions `check_*`; run as a script, it calls `device_checks.main(globals())`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def names(file: str) -> list[str]:
    """Names of the checks in `file`, without their prefix."""
    return re.findall(r"^def check_(\w+)", (HERE / file).read_text(), re.MULTILINE)


def run(file: str, devices: int = 8) -> dict[str, str]:
    """Runs every check of `file`: name -> traceback, empty where it passed."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    done = subprocess.run(
        [sys.executable, "-m", ".".join((HERE / file).resolve().relative_to(ROOT).with_suffix("").parts)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def main(checks: dict[str, Any]) -> None:
    outcome = {}
    for name, check in checks.items():
        if name.startswith("check_"):
            outcome[name.removeprefix("check_")] = _outcome(check)
    print(json.dumps(outcome))


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""
