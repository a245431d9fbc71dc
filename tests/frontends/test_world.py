"""One world on two processes of four devices: see world_checks.py, each of whose checks is a test here."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("world_checks.py")
ROOT = CHECKS.parent.parent.parent


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """Name of each check -> traceback, empty where it passed; one a rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    command = [sys.executable, "-m", "tests.frontends.world_checks"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port)], cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    lines = [[line for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]
    assert all(lines), outputs
    return [json.loads(line[-1]) for line in lines]


@pytest.mark.parametrize("name", re.findall(r"^    (\w+),$", CHECKS.read_text(), re.MULTILINE))
def test_world(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome[name] == "", f"rank {rank}: {outcome[name]}"
