"""Workers that run unmodified scripts: what they compute, write, report, and how they end."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launcher.workers import HERE, Worked, prepare, run_plainly, run_workers

pytestmark = pytest.mark.slow

TENSOR_PARALLEL = {"w1": [None, "model"], "b1": ["model"], "w2": ["model", None]}
ZERO = {"w1": ["data", "model"], "b1": ["model"], "w2": ["model", "data"]}


def script_in(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    return Path(shutil.copy(HERE / name, folder))


def numbers(output: str) -> list[float]:
    """The numbers on the lines that a script marks with `=`."""
    words = [word for line in output.splitlines() if line.startswith("= ") for word in line.split()]
    return [float(word) for word in words if word.lstrip("-")[:1].isdigit()]


def assert_same_numbers(output: str, expected: str) -> None:
    assert len(numbers(expected)) > 5
    np.testing.assert_allclose(numbers(output), numbers(expected), rtol=2e-5)


def assert_ended_well(worked: Worked) -> None:
    assert worked.codes == [0] * len(worked.codes), "\n".join(worked.outputs)


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in flat(value[key])]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [np.asarray(value)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    script = script_in(tmp_path_factory.mktemp("plain") / "work", "mlp_adam.py")
    return script.parent, run_plainly(script, ["track"])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    script = script_in(folder / "work", "mlp_adam.py")
    prepare(
        script,
        folder / "run",
        step="train_step",
        carried={"0": "state"},
        mesh={"data": 4, "model": 2},
        compute=TENSOR_PARALLEL,
        storage=ZERO,
    )
    shutil.rmtree(script.parent)
    return folder


@pytest.mark.parametrize("processes", [1, 2])
def test_a_script_on_eight_devices_does_what_it_does_on_one(
    plain: tuple[Path, str], prepared: Path, processes: int
) -> None:
    script = script_in(prepared / f"work_{processes}", "mlp_adam.py")
    # The identity of a step names its file: the script lies where it was captured.
    (prepared / "work").unlink(missing_ok=True)
    (prepared / "work").symlink_to(script.parent)
    script = prepared / "work" / "mlp_adam.py"
    run_dir = Path(shutil.copytree(prepared / "run", prepared / f"run_{processes}"))
    worked = run_workers(script, run_dir, processes, 8 // processes, args=["track"])
    assert_ended_well(worked)

    for output in worked.outputs:
        assert "world 1 1 1 0 1" in output
        assert_same_numbers(output, plain[1])

    written, expected = script.parent.resolve(), plain[0]
    names = {p.name for p in expected.iterdir()}
    assert {p.name for p in written.iterdir()} == names
    assert len(list((written / "wandb").glob("offline-run-*"))) == 1
    for ours, theirs in zip(
        *(flat(pickle.loads((f / "state.pkl").read_bytes())) for f in (written, expected)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)
    rows = [list(csv.reader((folder / "log.csv").open())) for folder in (written, expected)]
    np.testing.assert_allclose(np.array(rows[0], float), np.array(rows[1], float), rtol=2e-5)
    if processes == 2:
        elsewhere = run_dir / "logs" / "rank_1.files"
        assert {p.name for p in elsewhere.rglob("*") if p.is_file()} == {"log.csv", "state.pkl", "w1.npy"}

    assert_reports(worked, processes)


def assert_reports(worked: Worked, processes: int) -> None:
    assert [e["event"] for e in worked.events][:3] == ["ready", "compile", "step"]
    assert (worked.events[0]["processes"], worked.events[0]["devices"]) == (processes, 8)
    steps = [e for e in worked.events if e["event"] == "step"]
    assert [s["examples"] for s in steps] == [8, 8, 8, 8, 3] * 2
    assert len([e for e in worked.events if e["event"] == "compile"]) == 2  # the last batch is another signature
    losses = [n for line in worked.outputs[0].splitlines() if line.startswith("= loss") for n in numbers(line)]
    np.testing.assert_allclose([s["outputs"]["1/loss"] for s in steps], losses, rtol=1e-6)
    for rank in range(processes):
        record = json.loads((worked.run_dir / "environment" / f"rank_{rank}.json").read_text())
        assert record["process"] == {"index": rank, "count": processes}
        assert len(record["devices"]) == 8 // processes
        assert record["environment"]["RANK"] == str(rank)


def test_large_state_is_created_in_place_and_survives_a_restore(tmp_path: Path) -> None:
    script = script_in(tmp_path / "work", "large_state.py")
    expected = run_plainly(script)
    specs = {"w1": ["data", "model"], "w2": ["model", "data"]}
    prepare(
        script,
        tmp_path / "run",
        step="train_step",
        carried={"0": "state"},
        mesh={"data": 4, "model": 2},
        compute={"w1": [None, "model"], "w2": ["model", None]},
        storage=specs,
    )
    worked = run_workers(script, tmp_path / "run", 2, 4, frontend={"materialize_limit": "64KiB"})
    assert_ended_well(worked)
    for output in worked.outputs:
        assert_same_numbers(output, expected)
        for name in ("params", "opt"):
            assert f"{name} (64, 512) (16, 256) 4" in output
            assert f"{name} (512, 8) (256, 2) 4" in output


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ending")
    script = script_in(folder / "work", "ending.py")
    prepare(script, folder / "run", step="train_step", carried={"0": "w"}, mesh={"data": 8})
    return folder


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, "the script called sys.exit(3)"),
        ("exit message", 1, "no good"),
        ("raise", 1, "KeyError: 'missing'"),
        ("raise early", 1, "ValueError: bad config"),
    ],
)
def test_a_worker_ends_as_the_script_does(ending: Path, how: str, code: int, message: str | None) -> None:
    run_dir = Path(shutil.copytree(ending / "run", ending / how))
    worked = run_workers(ending / "work" / "ending.py", run_dir, 1, 8, args=[how])
    assert worked.codes == [code], worked.outputs[0]
    assert worked.outputs[0].count("exit handler ran") == 1
    assert (ending / "work" / "unflushed.txt").read_text() == "written"
    failure = run_dir / "logs" / "rank_0.failure.json"
    if message is None:
        assert not failure.exists()
        return
    record = json.loads(failure.read_text())
    assert (record["kind"], record["exit_code"], record["message"]) == ("script", code, message)
    assert record["file"] == str(ending / "work" / "ending.py")
    assert ("Traceback" in worked.outputs[0]) == how.startswith("raise")
    assert "automap_launch/" not in record["traceback"]
    if how == "exit message":
        assert "no good" in worked.outputs[0]


def test_orbax_saves_one_checkpoint_of_all_ranks(tmp_path: Path) -> None:
    plain = script_in(tmp_path / "plain", "orbax_manager.py")
    expected = run_plainly(plain)
    script = script_in(tmp_path / "work", "orbax_manager.py")
    mesh, compute = {"data": 4, "model": 2}, {"w": [None, "model"]}
    prepare(script, tmp_path / "run", step="train_step", carried={"0": "state"}, mesh=mesh, compute=compute)
    shutil.rmtree(script.parent / "checkpoints")
    worked = run_workers(script, tmp_path / "run", 2, 4)
    assert_ended_well(worked)
    for output in worked.outputs:
        assert_same_numbers(output, expected)
    assert {p.name for p in (script.parent / "checkpoints").iterdir()} == {"2", "3"}
    assert not (tmp_path / "run" / "logs" / "rank_1.files").exists()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("state", "rank 1 begins with other values of state/b than rank 0"),
        ("batch", "rank 1 begins with other values of the batch x than rank 0"),
        ("program", "the train step of rank 1 is another program than that of rank 0"),
    ],
)
def test_ranks_that_differ_are_refused(tmp_path: Path, what: str, message: str) -> None:
    script = script_in(tmp_path / "work", "unseeded.py")
    prepare(script, tmp_path / "run", step="train_step", carried={"0": "state"}, mesh={"data": 8})
    worked = run_workers(script, tmp_path / "run", 2, 4, args=[what])
    assert worked.codes == [1, 1]
    assert message in worked.outputs[0]
    record = json.loads((tmp_path / "run" / "logs" / "rank_0.failure.json").read_text())
    assert (record["kind"], record["message"].startswith(message)) == ("script", True)
