"""A process of its own for each case: what the heap is told cannot be taken back."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")

# How many of 16 pieces of 16 MiB are resident when every second was freed.
LEFT = """
import re
from pathlib import Path
from automap_launch.launcher.heap import give_back_freed_memory
if {called}:
    give_back_freed_memory()
resident = lambda: int(re.search(r"VmRSS:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
bytearray(b"x" * 2**24)
before = resident()
pieces = [bytearray(b"x" * 2**24) for _ in range(16)]
del pieces[::2]
print((resident() - before) // 2**14)
"""

# Page faults while 64 MiB are taken, written and freed, after a first time.
COUNT = """
import resource
from automap_launch.launcher.heap import keep_freed_memory
if {called}:
    keep_freed_memory()
bytearray(b"x" * 2**26)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(b"x" * 2**26)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(called: bool, **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(called=called)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def pieces_left(called: bool) -> int:
    command = [sys.executable, "-c", LEFT.format(called=called)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_freed_memory_is_given_back_while_the_state_is_made() -> None:
    """Of sixteen pieces, every second of which is freed, eight are left; by itself glibc keeps most."""
    assert pieces_left(called=True) <= 9
    assert pieces_left(called=False) >= 12


def test_freed_memory_is_taken_again_as_it_is() -> None:
    assert faults(called=True) * 20 < faults(called=False)


def test_settings_of_the_users_own_are_left_alone() -> None:
    assert faults(called=True, MALLOC_MMAP_THRESHOLD_="1048576") > 1000
