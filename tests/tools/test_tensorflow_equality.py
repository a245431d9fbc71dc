"""The comparison of TensorFlow scripts: runs that are missing, and what the table says of those that are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools import tensorflow_equality as tool

NAME = "tf_bert_tiny"
RUN = {
    "loss": np.array([2.0, 1.0]),
    "dense/kernel": np.ones((4, 4)),
    "key/bias": np.ones(4),
    "adam/dense_kernel_velocity": np.ones((4, 4)),
    "adam/key_bias_velocity": np.full(4, 1e-18),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tool, "RUNS", tmp_path)
    made = tmp_path / "float32" / NAME
    made.mkdir(parents=True)
    return made


def put(folder: Path, name: str, code: int = 0, text: str = "", **changed: np.ndarray) -> None:
    np.savez(folder / f"{name}.npz", **(RUN | {path.replace("__", "/"): array for path, array in changed.items()}))
    (folder / f"{name}.code").write_text(str(code))
    (folder / f"{name}.out").write_text(text)


def test_runs_that_were_made_are_not_made_again(folder: Path) -> None:
    put(folder, "plain")
    put(folder, "DP8")
    assert [job.name for job in tool.missing_jobs(NAME, "float64")] == ["plain", "control", "capture", *tool.PLANS]
    otherwise = ["no_xla", *(f"last_bit_{i}" for i in range(1, 1 + tool.SCRIPTS[NAME].draws))]
    plans = [plan for plan in tool.PLANS if plan != "DP8"]
    assert [job.name for job in tool.missing_jobs(NAME, "float32")] == ["control", *otherwise, "capture", *plans]


def test_slots_are_found_by_their_parameter() -> None:
    renamed = tool.by_parameter(RUN)
    assert set(renamed) == {"loss", "dense/kernel", "key/bias", "velocity/dense/kernel", "velocity/key/bias"}
    np.testing.assert_allclose(tool.gradients(renamed)["key/bias"], 1e-9)


def test_what_the_table_says(folder: Path) -> None:
    for name in ("plain", "one device"):
        put(folder, name)
    put(folder, "control", key__bias=np.full(4, 1.1), dense__kernel=np.full((4, 4), 1.1))
    put(folder, "DP8", key__bias=np.full(4, 1.2))  # within its control, and its gradient is noise
    put(folder, "DP4xTP2", dense__kernel=np.full((4, 4), 1.4))  # its gradient is none, and it is beyond 3 x the control
    put(folder, "PP2xDP2xTP2", code=1, text="Traceback\nValueError: no such thing\n")
    equal, noise, different, failed, missing = tool.rows(NAME)
    assert equal.startswith(f"| {NAME} | one device | equal: 0.0e+00 (")
    assert "; 1 of 6 by the control | not run |" in noise
    assert "**1 of 6 differ**" in different
    assert "| **failed**: ValueError: no such thing | not run |" in failed
    assert missing.endswith("| not run | not run |")
    assert any("DP8, float32" in line and "key/bias" in line for line in tool.remarks())
    assert tool.FLIPS.rstrip("\n") not in tool.remarks()
    exact = folder.parents[1] / "float64" / NAME
    exact.mkdir(parents=True)
    for name in ("plain", "control", "DP4xTP2"):
        put(exact, name)
    tool._compared.cache_clear()
    assert "**1 of 6 differ**" in tool.rows(NAME)[2]
    assert tool.FLIPS.rstrip("\n") in tool.remarks()
    put(folder, "DP4xTP2", dense__kernel=np.full((4, 4), 1.2))  # within it: so far TensorFlow alone goes, too
    tool._compared.cache_clear()
    assert "| as TensorFlow alone: 1 of 6, at most 2.0 x (dense/kernel) |" in tool.rows(NAME)[2]
