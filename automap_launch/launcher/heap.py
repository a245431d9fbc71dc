"""The C library's heap in a worker whose devices are CPUs."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1  # mallopt takes an int


def keep_freed_memory() -> None:
    """Has glibc keep what a step frees, for the next one.

    XLA allocates the temporary memory of a step at its start and frees it at its end. From 32 MiB on, glibc would ask
    the kernel for it each time, which clears every page anew: up to a third of a step. Settings of the user's own
    (`MALLOC_*_`, `GLIBC_TUNABLES`) are left alone; nothing is done where there is another C library.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if own or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)
