import dataclasses
import io
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from automap_launch.run_folder import RunFolder
from automap_launch.tracking import tracking as tracking_module
from automap_launch.tracking.backend import Backend, Metrics
from automap_launch.tracking.config import TrackingConfig
from automap_launch.tracking.console import ConsoleProgress
from automap_launch.tracking.events import EndEvent, Event, ReadyEvent, StepEvent
from automap_launch.tracking.tracking import Tracking


class RecordingBackend(Backend):
    """Keeps what it is told."""

    name = "recorder"

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.searched: list[dict[str, Any]] = []
        self.artifacts: list[tuple[str, str]] = []
        self.outcome: dict[str, Any] = {}
        self.exit_codes: list[int] = []

    def metrics(self, values: Metrics) -> None:
        self.logged.append(dict(values))

    def search(self, record: Mapping[str, Any]) -> None:
        self.searched.append(dict(record))

    def artifact(self, path: Path, kind: str) -> None:
        self.artifacts.append((kind, path.name))

    def summary(self, values: Mapping[str, Any]) -> None:
        self.outcome.update(values)

    def close(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


class FailingBackend(Backend):
    """Fails from the start."""

    name = "failing"

    def __init__(self) -> None:
        self.calls = 0

    def metrics(self, values: Metrics) -> None:
        self.calls += 1
        raise ConnectionError("the network is gone\nand this is the second line")


@pytest.fixture
def terminal() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


@pytest.fixture
def tracking(backend: RecordingBackend, terminal: io.StringIO) -> Tracking:
    return Tracking([backend], ConsoleProgress(terminal, 0.0), {"mode": "none", "run_dir": None})


def send(tracking: Tracking, event: Event) -> None:
    tracking.event({"event": event.kind, **dataclasses.asdict(event)})


def step(number: int, *, warmup: bool = False, tokens: int | None = None) -> StepEvent:
    return StepEvent(number, float(number), 0.1, 32, tokens, {"loss": 1.0 / number}, warmup)


def test_tokens_appear_only_for_steps_that_have_tokens(tracking: Tracking, backend: RecordingBackend) -> None:
    send(tracking, step(1))
    send(tracking, step(2, tokens=4096))
    assert "train/tokens_per_second" not in backend.logged[0]
    assert backend.logged[1]["train/tokens_per_second"] == pytest.approx(40960)


def test_mfu_is_null_until_the_peak_is_known(tracking: Tracking, backend: RecordingBackend, tmp_path: Path) -> None:
    send(tracking, ReadyEvent(0.0, processes=1, devices=4))
    send(tracking, step(1))
    tracking.plan(tmp_path / "plan.yaml", step_flops=1e9, peak_flops=1e11)
    send(tracking, step(2))
    assert backend.logged[0]["train/mfu"] is None
    assert backend.logged[1]["train/mfu"] == pytest.approx(1e9 / (0.1 * 4 * 1e11))


def test_artifacts_are_named_by_kind(tracking: Tracking, backend: RecordingBackend, tmp_path: Path) -> None:
    tracking.plan(tmp_path / "plan.yaml", hlo=tmp_path / "step.hlo.txt")
    tracking.report(tmp_path / "report.html")
    assert backend.artifacts == [("plan", "plan.yaml"), ("hlo", "step.hlo.txt"), ("report", "report.html")]


def test_the_search_curve_has_every_improvement_and_its_end_but_not_every_episode(
    tracking: Tracking, backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_module, "_SEARCH_POINT_SECONDS", 3600.0)
    tracking.search_started(seconds=60.0)
    for episode in range(1, 501):
        improvement = {"data": episode} if episode in (10, 11, 200) else None
        tracking.search(episode=episode, best_step_seconds=1.0 / episode, epsilon=0.5, improvement=improvement)
    tracking.search_ended()
    assert [r["search/episode"] for r in backend.searched] == [1, 10, 11, 200, 500]
    assert [r["improvement"] for r in backend.searched if r["improvement"]] == [{"data": i} for i in (10, 11, 200)]
    assert [set(m) for m in backend.logged] == [
        {"search/episode", "search/best_step_seconds", "search/epsilon", "search/loss"}
    ] * len(backend.searched)


def test_a_backend_that_fails_is_named_once_and_left_out(backend: RecordingBackend, terminal: io.StringIO) -> None:
    failing = FailingBackend()
    tracking = Tracking([failing, backend], ConsoleProgress(terminal, 0.0), {})
    for number in range(1, 4):
        send(tracking, step(number))
    tracking.finish({}, 0)
    assert failing.calls == 1
    assert [m["train/step"] for m in backend.logged] == [1, 2, 3]
    assert terminal.getvalue().count("warning") == 1
    assert "failing failed and is left out from now on: ConnectionError: the network is gone\n" in terminal.getvalue()


def test_finishing_twice_finishes_once(tracking: Tracking, backend: RecordingBackend) -> None:
    tracking.finish({"status": "failed"}, 3)
    tracking.finish({"status": "ok"}, 0)
    assert backend.exit_codes == [3]
    assert backend.outcome["result/status"] == "failed"


@pytest.mark.parametrize(
    "search",
    [None, {}, {"baselines": None}, {"baselines": {"data_parallel": None}, "predicted_step_seconds": 0.1}],
)
def test_an_unknown_speedup_is_null(
    search: dict[str, Any] | None, tracking: Tracking, backend: RecordingBackend
) -> None:
    tracking.finish({"search": search}, 0)
    assert backend.outcome["speedup_over_dp_predicted"] is None
    assert backend.outcome["speedup_over_dp_measured"] is None


def test_kinds_of_others_are_passed_over(tracking: Tracking, backend: RecordingBackend) -> None:
    tracking.event({"event": "heartbeat", "rank": 3})
    tracking.event({"rank": 3})
    assert backend.logged == []


def test_lost_events_are_told(tracking: Tracking, terminal: io.StringIO) -> None:
    send(tracking, EndEvent(0.0, steps=9, dropped=0))
    assert terminal.getvalue() == ""
    send(tracking, EndEvent(0.0, steps=9, dropped=4))
    assert "4 measurements were lost" in terminal.getvalue()


def test_events_from_several_threads_all_arrive(tmp_path: Path, terminal: io.StringIO) -> None:
    folder = RunFolder(tmp_path)
    tracking = Tracking.open(TrackingConfig(backend="none"), folder, {}, terminal)

    def many(first: int) -> None:
        for number in range(first, first + 200):
            send(tracking, step(number))

    threads = [threading.Thread(target=many, args=(1 + 200 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracking.finish({}, 0)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert sorted(line["train/step"] for line in lines if "train/step" in line) == list(range(1, 801))
    assert tracking.train_summary()["steps"] == 800
    assert tracking.info == {"mode": "none", "run_dir": None}
