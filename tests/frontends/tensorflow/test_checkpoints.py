"""Checkpoints of TensorFlow: saved under one plan, restored under another and by TensorFlow alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.equality import assert_equal, load_dump
from tests.frontends.tensorflow.harness import Job, Outcome, run_jobs

pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install 'automap-launch[tf]'")
pytestmark = pytest.mark.slow

SCRIPT = "checkpoints.py"
TENSOR_PARALLEL, PIPELINE = (4, 2, 1, 1), (2, 2, 2, 2)

Runs = Mapping[str, Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """A checkpoint by TensorFlow alone and one under a plan; the second is restored in two ways, the first in one."""
    step, restore = str(folder / "step"), ["--restore", "--dump"]
    return run_jobs(
        [
            Job("plain", "plain", SCRIPT, ["alone", "--dump", "plain.npz"]),
            Job("capture", "capture", SCRIPT, ["captured"], step),
            Job("saved", "run", SCRIPT, ["planned", "--dump", "saved.npz"], step, TENSOR_PARALLEL),
            Job("other_plan", "run", SCRIPT, ["planned", *restore, "other_plan.npz"], step, PIPELINE),
            Job("tensorflow", "plain", SCRIPT, ["planned", *restore, "tensorflow.npz"]),
            Job("of_tensorflow", "run", SCRIPT, ["alone", *restore, "of_tensorflow.npz"], step, TENSOR_PARALLEL),
        ],
        folder,
    )


@pytest.mark.parametrize("name", ["saved", "other_plan", "tensorflow", "of_tensorflow"])
def test_goes_on_as_tensorflow_alone_does(runs: Runs, folder: Path, name: str) -> None:
    assert runs["capture"].record["outcome"] == "step", runs["capture"].record
    assert runs[name].code == 0, runs[name].text
    reference = load_dump(folder / "plain.npz")
    assert_equal(reference, load_dump(folder / f"{name}.npz"), reference)


def test_a_capture_leaves_no_file_and_no_folder(runs: Runs, folder: Path) -> None:
    assert runs["capture"].record["outcome"] == "step", runs["capture"].record
    assert not (folder / "captured").exists()
    written = folder / "capture.files" / str(folder).lstrip("/") / "captured"
    assert (written / "before" / "saved_model.pb").exists()
