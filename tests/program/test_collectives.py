"""The analysis against XLA's partitioner: groups sharded together need no collective but those of contracted dims."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program.rule_cases import RULE_CASES

ROOT = Path(__file__).parents[2]
# Read off the text, not imported: importing that module would set 8 devices for this process.
NAMES = re.findall(r'^    "(.*?)": \(models', (ROOT / "tests/program/partitioned.py").read_text(), re.MULTILINE)
NAMES += [f"rule: {name}" for name in RULE_CASES]


@pytest.fixture(scope="module")
def partitioned():
    done = subprocess.run(
        [sys.executable, "-m", "tests.program.partitioned"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=dict(os.environ),
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {record["name"]: record for record in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_xla_inserts_the_all_reduces_foreseen_and_nothing_else(partitioned, name):
    record = partitioned[name]
    assert record["foreseen"], "a case without communication shows nothing"
    assert record["inserted"] == record["foreseen"]
