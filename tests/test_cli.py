"""The console script as a user meets it: help, errors, modes, exit codes, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from automap_launch import cli, workflow
from automap_launch.cluster.file import load_cluster
from automap_launch.resources import conf_folder

SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np

ROWS, STEPS = int(sys.argv[1]), int(sys.argv[2])

@jax.jit
def train_step(params, x, y):
    def loss_of(params):
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"] - y) ** 2)
    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

key = jax.random.key(0)
params = {
    "w1": jax.random.normal(key, (32, 64)) / 6, "b1": jnp.zeros(64), "w2": jax.random.normal(key, (64, 8)) / 8,
}
rng = np.random.default_rng(0)
for step in range(STEPS):
    x = rng.normal(size=(ROWS, 32)).astype(np.float32)
    params, loss = train_step(params, x, x[:, :8])
    print(f"step {step} loss {loss:.6f}", flush=True)
"""

LOCAL = ("cluster.devices=8", "search=heuristic", "tracking=none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "automap_launch", *arguments]


def automap(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    return subprocess.run(
        command(arguments), cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def summary(folder: Path) -> dict[str, Any]:
    """The summary of the only run in `folder`."""
    (path,) = folder.glob("outputs/*/*/summary.json")
    return json.loads(path.read_text())


def test_help_reads_well(folder: Path) -> None:
    done = automap(folder, "--help")
    assert done.returncode == 0
    assert "automap-launch +recipe=quickstart" in done.stdout
    assert "recipe: " in done.stdout.replace("\n", " ")
    assert "quickstart" in done.stdout
    assert not (folder / "outputs").exists()


def test_the_config_can_be_shown_without_a_run(folder: Path) -> None:
    done = automap(folder, "--cfg", "job", "search.budget=20m", "--", "train.py", "--lr", "1e-3")
    shown = yaml.safe_load(done.stdout)
    assert (shown["search"]["budget"], shown["entry"]["args"]) == ("20m", ["--lr", "1e-3"])
    assert not (folder / "outputs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["+recipe=quikstart"], ["quikstart", "quickstart", "quickstart_multiprocess"]),
        (["cluster=a1000"], ["a1000", "v100_8x8", "local"]),
        (["mode=trian", "--", "train.py"], ["trian", "train, capture, plan, run"]),
        (["serch=dqn", "--", "train.py"], ["serch", "search"]),
        (["search.bugdet=1m", "--", "train.py"], ["search.bugdet", "search.budget"]),
        (["search.budget=", "--", "train.py"], ["search.budget"]),
        (["x=[", "--", "train.py"], ["x=["]),
        (["--", "trian.py"], ["trian.py", "Near it: train.py"]),
        ([], ["-- train.py", "+recipe="]),
        (["--"], ["nothing follows"]),
        (["--json", "--foo", "--", "train.py"], ["unknown option --foo", "no summary.json"]),
        (["train.py"], ["train.py", "-- train.py"]),
        (["recipe=quickstart"], ["+recipe="]),
        (["search=dnq", "--", "train.py"], ["did you mean `dqn`", "heuristic", "random"]),
        (["mode=run", "plan=none.yaml", "cluster=v100_1x8", "--", "train.py", "8", "2"], ["none.yaml"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_wrong_command_line_lists_what_there_is(folder: Path, arguments: list[str], words: list[str]) -> None:
    done = automap(folder, *arguments)
    assert done.returncode in (2, 6), done.stderr
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr
    assert "usage:" not in done.stderr


def test_a_run_folder_that_cannot_be_made_says_so(folder: Path) -> None:
    (folder / "outputs").write_text("a file in its place")
    for arguments in ([], ["hydra.run.dir=train.py/run"]):
        done = automap(folder, *arguments, "--", "train.py")
        assert done.returncode == 2, done.stderr
        assert "cannot make the run folder" in done.stderr
        assert "Traceback" not in done.stderr


def test_json_prints_the_path_of_the_summary_alone(folder: Path) -> None:
    done = automap(folder, "--json", "mode=plan", "cluster=v100_1x8", "tracking=none", "--", "train.py", "8", "2")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    record = json.loads((folder / line).read_text())
    assert (record["status"], record["phase"], record["cluster"]["devices_per_host"]) == ("ok", "search", 8)
    assert record["search"]["baselines"].keys() >= {"single", "data_parallel"}
    (check,) = record["search"]["verified"]
    assert check["fits"] or check["reason"]
    run = (folder / line).parent
    assert yaml.safe_load((run / "plan.yaml").read_text())["fingerprint"] == record["fingerprint"]
    assert (run / ".hydra" / "config.yaml").exists()
    assert (run / "report.html").exists()
    again = automap(folder, "--json", f"hydra.run.dir={run}", "mode=plan", "--", "train.py", "8", "2")
    assert (again.returncode, again.stdout) == (2, "")
    assert "another launch" in again.stderr
    assert json.loads((folder / line).read_text()) == record


def test_a_group_is_pinned_by_the_path_of_a_parameter(folder: Path) -> None:
    pins = ["search.pin.data=2", "search.pin.groups={params/w1@0: model, params/w2@1: null}"]
    settings = ["mode=plan", "cluster=v100_1x8", "search=heuristic", "tracking=none"]
    done = automap(folder, *settings, *pins, "--", "train.py", "8", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1  # the script's own `--json` is not ours
    (file,) = folder.glob("outputs/*/*/plan.yaml")
    plan = yaml.safe_load(file.read_text())
    axes = {tuple(group["members"]): group["axis"] for group in plan["groups"]}
    assert plan["mesh"] == {"data": 2, "model": 4}
    assert (axes[("params/w1",)], axes[("params/w2",)]) == ("model", None)


def test_capture_alone(folder: Path) -> None:
    done = automap(folder, "mode=capture", "cluster=v100_1x8", "--", "train.py", "8", "2")
    assert done.returncode == 0, done.stderr
    (step,) = folder.glob("outputs/*/*/train_step")
    assert {p.name for p in step.iterdir()} >= {"step.json", "step.cpu.mlirbc", "step.cuda.mlirbc", "sources.json"}


def test_a_machine_that_is_not_the_plans_cluster_gets_the_command_to_start_there(folder: Path) -> None:
    done = automap(folder, "cluster=v100_8x8", "search=heuristic", "tracking=none", "--", "train.py", "64", "2")
    assert done.returncode == 4, done.stderr
    assert "mode=run" in done.stderr
    assert "-- train.py 64 2" in done.stderr
    record = summary(folder)
    assert (record["error"]["kind"], record["plan"]["path"]) == ("plan", "plan.yaml")


def test_an_impossible_pin_says_why(folder: Path) -> None:
    done = automap(folder, *LOCAL, "search.pin.data=3", "--", "train.py", "8", "2")
    assert done.returncode == 6, done.stderr
    assert "search.pin.data" in done.stderr
    assert "8" in done.stderr


def test_no_plan_fits_says_what_is_needed_and_what_there_is(folder: Path) -> None:
    done = automap(
        folder, "mode=plan", "cluster=v100_1x8", "cluster.device.memory_bytes=1000", "--", "train.py", "8", "2"
    )
    assert done.returncode == 7, done.stderr
    assert "1000" in done.stderr or "900" in done.stderr


def test_the_same_launch_takes_its_plan_from_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    launch = ("mode=plan", "cluster=v100_1x8", "search=heuristic", "tracking=none", "search.verify_top_k=0")
    first = automap(folder, *launch, "--", "train.py", "8", "2")
    assert first.returncode == 0, first.stderr
    assert "from the cache" not in first.stdout
    again = automap(folder, *launch, "--", "train.py", "8", "2")
    assert again.returncode == 0, again.stderr
    assert "plan from the cache of" in again.stdout
    records = sorted((json.loads(p.read_text()) for p in folder.glob("outputs/*/*/summary.json")), key=_started)
    assert [bool(r["search"].pop("cached")) for r in records] == [False, True]
    assert records[0]["search"] == records[1]["search"]
    plans = {p.read_text() for p in folder.glob("outputs/*/*/plan.yaml")}
    assert len(plans) == 1
    (entry,) = (folder / "cache" / "automap-launch" / "plans").iterdir()
    entry.write_text("{")
    third = automap(folder, *launch, "--", "train.py", "8", "2")
    assert third.returncode == 0, third.stderr
    assert entry.name in third.stdout
    assert "found by" in third.stdout


def _started(record: dict[str, Any]) -> str:
    return str(record["started"])


@pytest.mark.slow
def test_a_plan_is_run_again_refused_for_another_script_and_may_be_edited(folder: Path) -> None:
    assert automap(folder, "mode=plan", *LOCAL, "--", "train.py", "8", "2").returncode == 0
    (plan,) = folder.glob("outputs/*/*/plan.yaml")
    run = ("mode=run", f"plan={plan}", *LOCAL)
    done = automap(folder, *run, "--", "train.py", "8", "2")
    assert done.returncode == 0, done.stderr
    assert "step 1 loss" in done.stdout
    (folder / "other.py").write_text(
        SCRIPT.replace("(32, 64)", "(32, 128)").replace("(64,", "(128,").replace("zeros(64)", "zeros(128)")
    )
    refused = automap(folder, *run, "--", "other.py", "8", "2")
    assert refused.returncode == 6, refused.stderr
    assert "fingerprint" in refused.stderr
    record = yaml.safe_load(plan.read_text())
    plan.write_text(yaml.safe_dump({**record, "colour": "blue"}))
    damaged = automap(folder, *run, "--", "train.py", "8", "2")
    assert damaged.returncode == 6, damaged.stderr
    assert "colour" in damaged.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_training_leaves_no_process_and_keeps_what_was_written(
    folder: Path, number: signal.Signals, code: int
) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    arguments = command([*LOCAL, "launcher.processes=2", "--", "train.py", "8", "100000"])
    launcher = subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if line.startswith("step 20 "):
            break
    launcher.send_signal(number)
    rest = launcher.stdout.read()
    assert launcher.wait(60) == code, rest
    record = summary(folder)
    assert (record["status"], record["exit_code"], record["error"]["kind"]) == ("interrupted", code, "signal")
    assert record["train"]["steps"] >= 15
    (run,) = folder.glob("outputs/*/*")
    assert "step 20 " in (run / "logs" / "rank_0.log").read_text()
    assert (run / "metrics.jsonl").read_text().count("train/step_seconds") >= 15
    assert _processes_naming(str(run)) == []


@pytest.mark.slow
def test_a_signal_while_searching_keeps_the_best_plan(folder: Path) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    settings = ["cluster=v100_8x8", "search=random", "search.patience=null", "tracking=none"]
    launcher = subprocess.Popen(
        command([*settings, "--", "train.py", "64", "2"]),
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("outputs/*/*/plan.yaml")) and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode in (130, 4), errors
    (plan,) = folder.glob("outputs/*/*/plan.yaml")
    assert yaml.safe_load(plan.read_text())["predicted"]["step_seconds"] > 0


def _processes_naming(text: str) -> list[int]:
    """Processes, this one apart, whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_calibration_writes_a_cluster_file_that_plans_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = load_cluster(conf_folder() / "cluster" / "v100_1x8.yaml")
    machine = dataclasses.replace(preset, name="local", source="calibrated on here")
    monkeypatch.setattr(workflow, "calibrate", lambda *_: machine)
    monkeypatch.chdir(folder)
    assert cli.run(["mode=calibrate", "cluster.devices=8", "tracking=none"]) == 0
    (written,) = folder.glob("outputs/*/*/cluster.yaml")
    assert load_cluster(written) == machine
    assert summary(folder)["mode"] == "calibrate"
    told = capsys.readouterr().out
    assert "calibrated on here" in told
    assert f"cluster.file={written.relative_to(folder)}" in told or f"cluster.file={written}" in told
    planned = automap(folder, f"cluster.file={written}", "mode=plan", *LOCAL[1:], "--", "train.py", "64", "1")
    assert planned.returncode == 0, planned.stderr
    assert "cluster local: 1 x 8 NVIDIA V100" in planned.stdout
