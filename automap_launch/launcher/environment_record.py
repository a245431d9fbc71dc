"""`environment/rank_N.json`: what a worker ran on, for whoever has to explain a run later."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("automap-launch", "jax", "jaxlib", "flax", "optax", "equinox", "tensorflow", "trax", "numpy")
_VARIABLES = ("JAX_", "XLA_", "CUDA_", "NCCL_", "LIBTPU_", "TF_", "WANDB_MODE", "OMP_NUM_THREADS", "AUTOMAP_")
_LAUNCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def write_environment(path: Path) -> None:
    """Writes host, process, versions, devices and the environment variables that matter. JAX's devices are up."""
    import jax

    record: dict[str, Any] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cwd": os.getcwd(),
        "versions": versions(),
        "process": {"index": jax.process_index(), "count": jax.process_count()},
        "devices": [{"id": d.id, "kind": d.device_kind, "platform": d.platform} for d in jax.local_devices()],
        "environment": {name: value for name, value in sorted(os.environ.items()) if matters(name)},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1))
    except OSError as error:  # a full disk must not keep a worker
        print(f"automap-launch: cannot write {path}: {error.strerror}", file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    """Versions of the installed packages that training may depend on."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def matters(name: str) -> bool:
    """Whether an environment variable belongs into the record: it may change how a worker runs, and is no secret."""
    return (name.startswith(_VARIABLES) or name in _LAUNCH) and not any(word in name.upper() for word in _SECRETS)
