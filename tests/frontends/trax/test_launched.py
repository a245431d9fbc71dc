"""Trax scripts, launched over 8 CPU devices, against the same scripts on one device."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.equality import assert_equal, load_dump
from tests.recipes.runs import ROOT, launch

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "recipes" / "trax" / "train.py"
HERE = Path(__file__).parent
LOCAL = ("cluster=local", "cluster.devices=8", "search=heuristic")
TWO_BY_FOUR = ("launcher.processes=2", "launcher.devices_per_process=4")
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def mesh(data: int, model: int = 1) -> tuple[str, ...]:
    return (f"search.pin.data={data}", f"search.pin.model={model}")


def alone(arguments: list[str], folder: Path) -> None:
    """The script on one device, without the launcher."""
    done = subprocess.run(
        [sys.executable, str(HERE / "alone.py"), *arguments],
        cwd=folder,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def dump_alone(arguments: list[str], folder: Path, name: str) -> dict[str, np.ndarray]:
    file = folder / f"{name}.npz"
    alone([str(SCRIPT), *arguments, "--dump", str(file)], folder)
    return load_dump(file)


LANGUAGE_MODEL = ["--model", "lm", "--steps", "20", "--log-every", "1", "--batch-size", "16", "--length", "32"]
LANGUAGE_MODEL += ["--width", "64"]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Trax alone, and the control."""
    folder = tmp_path_factory.mktemp("lm")
    reference = dump_alone(LANGUAGE_MODEL, folder, "reference")
    return reference, dump_alone([*LANGUAGE_MODEL, "--permute-rows"], folder, "control")


@pytest.mark.parametrize(
    "overrides",
    [
        (*mesh(4, 2), *TWO_BY_FOUR),
        (*mesh(2, 2), "search.pin.stages=2", "search.pin.micro_batches=4"),
    ],
    ids=["two processes", "pipeline"],
)
def test_a_language_model_equals_trax_alone(
    language_model: tuple[dict[str, np.ndarray], dict[str, np.ndarray]], overrides: tuple[str, ...], tmp_path: Path
) -> None:
    reference, control = language_model
    launched = launch(SCRIPT, LANGUAGE_MODEL, tmp_path, overrides=(*LOCAL, *overrides))
    assert launched.exit_code == 0, launched.terminal
    assert launched.terminal.count("compiled the step") == 1
    assert "not the one that was captured" not in launched.terminal
    assert len(reference["loss"]) == 20
    assert launched.dump is not None
    assert_equal(reference, launched.dump, control, average_gradients(reference))


def average_gradients(dump: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adam's first moments: under the path of the parameter, and of the parameter's two slots."""
    gradients = {}
    for index, path in enumerate(name for name in dump if name.startswith("params/")):
        moment = dump[f"slots/{index}/0"]
        assert moment.shape == dump[path].shape
        gradients |= dict.fromkeys((path, f"slots/{index}/0", f"slots/{index}/1"), moment)
    return gradients


def test_a_run_that_was_stopped_goes_on_as_the_unbroken_one(tmp_path: Path) -> None:
    """With data parallelism; the unbroken run is Trax alone. Files are left once, and those of the plain run."""
    arguments = ["--model", "mlp", "--log-every", "1"]
    reference = dump_alone([*arguments, "--steps", "20", "--output-dir", "alone"], tmp_path, "reference")
    control = dump_alone([*arguments, "--steps", "20", "--permute-rows"], tmp_path, "control")
    for steps in ("10", "20"):
        launched = launch(
            SCRIPT, [*arguments, "--steps", steps, "--output-dir", "launched"], tmp_path, overrides=(*LOCAL, *mesh(8))
        )
        assert launched.exit_code == 0, launched.terminal
        assert launched.summary["train"]["steps"] == 10
    assert launched.dump is not None
    for run in (reference, control):  # Trax saves a checkpoint before it enters that step's loss into the history
        run["loss"] = np.delete(run["loss"], 9)
    assert_equal(reference, launched.dump, control)
    names = [{summary_name(p) for p in (tmp_path / f).rglob("*") if p.is_file()} for f in ("alone", "launched")]
    assert names[0] == names[1]


def summary_name(path: Path) -> str:
    """Without the time and the host in the name of a summary."""
    return "events" if path.name.startswith("events.out") else path.name


def test_a_run_that_gin_configures(tmp_path: Path) -> None:
    """`-m trax.trainer` with a gin file whose inputs are registered by a module in the current folder."""
    for file in (HERE / "gin").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    arguments = ["-m", "trax.trainer", "--config_file=mlp.gin", "--output_dir"]
    alone([*arguments[:-1], "--output_dir=alone"], tmp_path)
    command = [sys.executable, "-m", "automap_launch", "--json", "tracking=none", *LOCAL, *mesh(8), "--"]
    done = subprocess.run(
        [*command, *arguments[:-1], "--output_dir=launched"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / done.stdout.strip()).read_text())
    assert summary["train"]["steps"] == 20
    expected, found = checkpoint(tmp_path / "alone"), checkpoint(tmp_path / "launched")
    assert found["step"] == 20
    for name in ("metrics/loss", "metrics/accuracy"):
        np.testing.assert_allclose(history(found, name), history(expected, name), rtol=1e-5)
    assert "MLP.layer_widths = (64, 64, 4)" in (tmp_path / "launched" / "config.gin").read_text()


def checkpoint(folder: Path) -> Any:
    return pickle.loads(gzip.decompress((folder / "model.pkl.gz").read_bytes()))


def history(saved: Any, name: str) -> list[float]:
    return [float(value) for _, value in saved["history"]["_values"]["eval"][name]]
