"""The script's own W&B leaves nothing behind, whatever mode it asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALLS = {
    "an explicit mode": 'wandb.init(mode="offline")',
    "the environment": "wandb.init()",
    "settings": 'wandb.init(settings=wandb.Settings(mode="offline"))',
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("imported", ["before", "after"])
def test_no_run_is_made(call: str, imported: str, tmp_path: Path) -> None:
    disable = "from automap_launch.frontends.silent_wandb import disable_wandb; disable_wandb()"
    lines = ["import wandb", disable] if imported == "before" else [disable, "import wandb"]
    script = "\n".join([*lines, f"run = {call}", "run.log({'loss': 1.0})", "run.finish()", "print('done')"])
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("done\n")
    assert list(tmp_path.iterdir()) == []
