"""The C library's heap in a worker whose devices are CPUs."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1  # mallopt takes an int
_LARGE = 2**20


def give_back_freed_memory() -> None:
    """Has glibc give back at once what is freed of large arrays, until `keep_freed_memory` says otherwise.

    Left to itself it keeps pieces of up to 32 MiB for the next one from the first on that is freed, and what is freed
    while the state is made lies about between the state. As there, settings of the user's own are left alone.
    """
    _set({_M_MMAP_THRESHOLD: _LARGE})


def keep_freed_memory() -> None:
    """Has glibc keep what a step frees, for the next one.

    XLA allocates the temporary memory of a step at its start and frees it at its end. From 32 MiB on, glibc would ask
    the kernel for it each time, which clears every page anew: up to a third of a step. Settings of the user's own
    (`MALLOC_*_`, `GLIBC_TUNABLES`) are left alone; nothing is done where there is another C library.
    """
    _set({_M_MMAP_THRESHOLD: _LARGEST, _M_TRIM_THRESHOLD: _LARGEST})


def _set(options: Mapping[int, int]) -> None:
    own = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if own or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
