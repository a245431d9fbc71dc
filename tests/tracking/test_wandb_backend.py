import dataclasses
import io
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from automap_launch.run_folder import RunFolder
from automap_launch.tracking.config import TrackingConfig
from automap_launch.tracking.events import ReadyEvent, StepEvent
from automap_launch.tracking.tracking import Tracking
from automap_launch.tracking.wandb_backend import has_api_key, resolve_mode
from tests.tracking.offline_run import OfflineRun, read_offline_run


def only_run(folder: Path) -> OfflineRun:
    """The finished run in `folder`. wandb's service writes its end a moment after `finish` has returned."""
    (path,) = (folder / "wandb").glob("offline-run-*")
    deadline = time.monotonic() + 20
    while (run := read_offline_run(path)).exit_code is None:
        assert time.monotonic() < deadline, "the run was not finished"
        time.sleep(0.02)
    return run


def track(folder: RunFolder, steps: int = 3, **config: object) -> Tracking:
    """A launch in small, up to its last step."""
    settings = TrackingConfig(**{"mode": "offline", **config})  # type: ignore[arg-type]
    tracking = Tracking.open(settings, folder, {"search": {"method": "dqn"}}, io.StringIO())
    tracking.search_started(seconds=10.0)
    tracking.search(
        episode=1, best_step_seconds=0.2, epsilon=0.9, loss=None, improvement={"data": 8, "sharded": frozenset()}
    )
    tracking.search(episode=2, best_step_seconds=0.1, epsilon=0.8, loss=0.5, improvement={"data": 4})
    tracking.search_ended()
    folder.plan.write_text("schema: 1\n")
    tracking.plan(folder.plan, step_flops=8e9, peak_flops=1e11)
    for event in (
        ReadyEvent(time=0.0, processes=2, devices=8),
        *(
            StepEvent(i, float(i), 0.1, 32, 4096, {"loss": 1.0 / i, "metrics/accuracy": 0.5}, warmup=i == 1)
            for i in range(1, steps + 1)
        ),
    ):
        tracking.event({"event": event.kind, **dataclasses.asdict(event)})
    return tracking


SUMMARY = {"search": {"baselines": {"data_parallel": 0.2, "megatron": None}, "predicted_step_seconds": 0.1}}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, OfflineRun]:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    track(folder, project="mine", name="first", tags=["a", "b"]).finish(
        {**SUMMARY, "status": "ok"}, 0, speedup_over_dp_measured=1.5
    )
    return folder, only_run(folder.root)


def test_the_run_is_named_as_configured(recorded: tuple[RunFolder, OfflineRun]) -> None:
    _, run = recorded
    assert (run.project, run.name, run.tags, run.exit_code) == ("mine", "first", ["a", "b"], 0)
    assert run.config["search"] == {"method": "dqn"}


def test_step_metrics_are_defined(recorded: tuple[RunFolder, OfflineRun]) -> None:
    _, run = recorded
    assert run.step_metrics == {
        "train/step": "",
        "train/*": "train/step",
        "search/episode": "",
        "search/*": "search/episode",
    }


def test_the_history_has_the_keys_of_the_contract(recorded: tuple[RunFolder, OfflineRun]) -> None:
    _, run = recorded
    rows = [{k: v for k, v in row.items() if not k.startswith("_")} for row in run.history]
    assert rows[0] == {
        "search/episode": 1,
        "search/best_step_seconds": 0.2,
        "search/epsilon": 0.9,
        "search/loss": None,
    }
    assert rows[1]["search/loss"] == 0.5
    assert rows[-1] == {
        "train/step": 3,
        "train/step_seconds": 0.1,
        "train/examples_per_second": pytest.approx(320.0),
        "train/tokens_per_second": pytest.approx(40960.0),
        "train/mfu": pytest.approx(0.1),
        "train/out/loss": pytest.approx(1 / 3),
        "train/out/metrics/accuracy": 0.5,
    }
    assert [row["train/step"] for row in rows if "train/step" in row] == [1, 2, 3]


def test_metrics_jsonl_holds_the_same(recorded: tuple[RunFolder, OfflineRun]) -> None:
    folder, run = recorded
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    written = [{k: v for k, v in line.items() if k != "time"} for line in lines if "summary" not in line]
    assert written == [{k: v for k, v in row.items() if not k.startswith("_")} for row in run.history]


def test_the_plan_is_an_artifact(recorded: tuple[RunFolder, OfflineRun]) -> None:
    _, run = recorded
    assert run.artifacts == [("plan", ["plan.yaml"])]


def test_the_summary_tells_the_speedup(recorded: tuple[RunFolder, OfflineRun]) -> None:
    _, run = recorded
    assert run.summary["speedup_over_dp_predicted"] == 2.0
    assert run.summary["speedup_over_dp_measured"] == 1.5
    assert run.summary["result/status"] == "ok"


def test_a_failed_launch_is_a_failed_run(tmp_path: Path) -> None:
    track(RunFolder(tmp_path)).finish({"status": "failed"}, 3)
    assert only_run(tmp_path).exit_code == 3


def test_a_script_with_a_run_of_its_own_gives_two_complete_runs(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    script = """
        import wandb
        run = wandb.init(project="scripts-project", config={"lr": 0.1})
        for step in range(5):
            wandb.log({"loss": 1.0 / (step + 1)}, step=10 * step)
        wandb.finish()
    """
    environment = {"WANDB_MODE": "offline", "WANDB_RUN_ID": "scripts-own", "WANDB_SILENT": "true"}
    tracking = track(RunFolder(ours), steps=2)
    worker = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(worker, env={**os.environ, **environment}, cwd=theirs, check=True, timeout=120)
    last = StepEvent(3, 3.0, 0.1, 32, 4096, {"loss": 0.25})
    tracking.event({"event": "step", **dataclasses.asdict(last)})
    tracking.finish(SUMMARY, 0)

    own = only_run(theirs)
    assert (own.run_id, own.project, own.exit_code) == ("scripts-own", "scripts-project", 0)
    assert [(row["_step"], row["loss"]) for row in own.history] == [(10 * i, 1.0 / (i + 1)) for i in range(5)]
    assert not any("train/step" in row for row in own.history)
    run = only_run(ours)
    assert [row["train/step"] for row in run.history if "train/step" in row] == [1, 2, 3]
    assert not any("loss" in row for row in run.history)
    assert run.exit_code == 0


@pytest.mark.parametrize(
    ("mode", "environ", "expected"),
    [
        ("auto", {}, "offline"),
        ("auto", {"WANDB_API_KEY": "x"}, "online"),
        ("auto", {"WANDB_API_KEY": "x", "WANDB_MODE": "offline"}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("auto", {"WANDB_MODE": "dryrun", "WANDB_API_KEY": "x"}, "offline"),
        ("auto", {"WANDB_MODE": "online"}, "online"),
        ("auto", {"WANDB_DISABLED": "true", "WANDB_API_KEY": "x"}, "disabled"),
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": "x"}, "offline"),
        ("disabled", {"WANDB_API_KEY": "x"}, "disabled"),
    ],
)
def test_mode(mode: str, environ: dict[str, str], expected: str, tmp_path: Path) -> None:
    assert resolve_mode(mode, {"HOME": str(tmp_path), **environ}) == expected


def test_a_key_in_netrc_counts_for_its_own_server(tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password key\n")
    netrc.chmod(0o600)
    assert has_api_key({"HOME": str(tmp_path)})
    assert not has_api_key({"HOME": str(tmp_path), "WANDB_BASE_URL": "https://wandb.example.org"})
    moved = netrc.rename(tmp_path / "elsewhere")
    assert not has_api_key({"HOME": str(tmp_path)})
    assert has_api_key({"HOME": str(tmp_path), "NETRC": str(moved)})
    moved.write_text("no netrc at all")
    assert not has_api_key({"HOME": str(tmp_path), "NETRC": str(moved)})


DRIVER = """
    import os
    import sys
    from pathlib import Path
    from automap_launch.run_folder import RunFolder
    from automap_launch.tracking import wandb_backend
    from automap_launch.tracking.config import TrackingConfig
    from automap_launch.tracking.tracking import Tracking

    wandb_backend._SETTINGS.update(init_timeout=2.0)
    folder = RunFolder(Path(sys.argv[1]))
    environment = dict(os.environ)
    tracking = Tracking.open(TrackingConfig(backend=sys.argv[2], mode=sys.argv[3]), folder, {}, sys.stderr)
    assert dict(os.environ) == environment  # workers are started now, and inherit it
    tracking.event({"event": "step", "step": 1, "time": 0.0, "seconds": 0.1, "outputs": {"loss": 1.0}})
    tracking.finish({"status": "ok"}, 0)
    assert dict(os.environ) == environment
    print(tracking.info["mode"], "wandb" in sys.modules)
"""


def drive(folder: Path, backend: str, mode: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A launch in a process of its own, which has not imported wandb yet."""
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(folder), backend, mode]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environ = {"HOME": str(folder), **environ}
    return subprocess.run(
        command, env={**clean, **environ}, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def poisoned(tmp_path: Path) -> str:
    """A PYTHONPATH on which importing wandb fails."""
    folder = tmp_path / "poisoned"
    folder.mkdir()
    (folder / "wandb.py").write_text("raise ImportError('poisoned: wandb was imported')\n")
    return str(folder)


@pytest.mark.parametrize(("backend", "mode"), [("none", "auto"), ("wandb", "disabled")])
def test_wandb_is_not_imported_unless_asked_for(tmp_path: Path, poisoned: str, backend: str, mode: str) -> None:
    result = drive(tmp_path, backend, mode, PYTHONPATH=poisoned)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["none" if backend == "none" else "disabled", "False"]
    assert "poisoned" not in result.stderr
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["train/step"] == 1


def test_without_wandb_there_is_one_warning_and_the_run_goes_on(tmp_path: Path, poisoned: str) -> None:
    result = drive(tmp_path, "wandb", "offline", PYTHONPATH=poisoned)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == "disabled"
    assert result.stderr.count("warning") == 1
    assert "poisoned: wandb was imported" in result.stderr
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["train/step"] == 1


def test_offline_prints_one_line_of_ours_and_nothing_of_wandb(tmp_path: Path) -> None:
    result = drive(tmp_path, "wandb", "auto")
    assert result.stdout == "offline True\n"
    lines = result.stderr.splitlines()
    assert len(lines) == 2, result.stderr
    assert "wandb sync" in lines[0]
    assert lines[1].startswith("automap-launch step 1")


def test_run_settings_of_the_script_are_not_ours(tmp_path: Path) -> None:
    """The environment names a run: the script's. Ours has its own id, name and place, and changes nothing there."""
    own = {"RUN_ID": "scripts-own", "NAME": "scripts-name", "PROJECT": "scripts-project", "DIR": "/nonexistent"}
    own |= {"RESUME": "must", "TAGS": "scripts", "SERVICE": "3-1-unix-/nonexistent", "SILENT": "false"}
    result = drive(tmp_path, "wandb", "offline", **{f"WANDB_{k}": v for k, v in own.items()})
    assert result.returncode == 0, result.stderr
    assert result.stdout == "offline True\n"
    run = only_run(tmp_path)
    assert run.project == "automap-launch"
    assert run.run_id != "scripts-own"
    assert run.name != "scripts-name"
    assert run.tags == []


def test_a_failing_server_leaves_an_offline_run(tmp_path: Path) -> None:
    """Port 9 of this host refuses every connection."""
    result = drive(tmp_path, "wandb", "online", WANDB_API_KEY="a" * 40, WANDB_BASE_URL="http://127.0.0.1:9")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == "offline"
    assert result.stderr.count("warning") == 1
    assert "wandb: " not in result.stderr  # its own lines begin so
    assert only_run(tmp_path).history[0]["train/step"] == 1


def test_online_without_a_key_stays_offline_without_a_question(tmp_path: Path) -> None:
    result = drive(tmp_path, "wandb", "online")
    assert result.stdout.split()[0] == "offline"
    assert "WANDB_API_KEY" in result.stderr
