"""How many devices of a platform this machine has, asked in a child process: no backend starts in the launcher."""

from __future__ import annotations

import os
import subprocess
import sys

_QUESTION = """
import sys, jax
try:
    print(len(jax.local_devices(backend=sys.argv[1])))
except RuntimeError:
    print(0)
"""
_TIMEOUT = 120.0  # seconds


def local_devices(platform: str) -> int:
    """Devices of `platform` (`cuda`, `tpu`, `cpu`) here; 0 when JAX has no such backend."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("JAX_PLATFORMS", None)
    command = [sys.executable, "-c", _QUESTION, platform]
    answer = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT,
        check=True,
    )
    return int(answer.stdout)
