import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from automap_launch.plan.layout import Layout
from automap_launch.run_folder import RunFolder
from automap_launch.tracking.report import ParameterSharding, parameter_shardings, read_run, write_report
from automap_launch.train_step import Argument, Result, StepIdentity, TrainStep

SUMMARY: dict[str, Any] = {
    "run_id": "20260102-030405-abcdef",
    "status": "ok",
    "mode": "train",
    "exit_code": 0,
    "started": "2026-01-02T03:04:05.678901+00:00",
    "ended": "2026-01-02T03:05:05+00:00",
    "fingerprint": "0123456789abcdef",
    "cluster": {"name": "local", "hosts": 1, "devices_per_host": 8},
    "plan": {"found_by": "dqn"},
    "search": {
        "seconds": 24.0,
        "evaluations": 3300,
        "predicted_step_seconds": 0.1,
        "baselines": {"single": None, "data_parallel": 0.25, "zero_data_parallel": 0.3, "megatron": 0.15},
        "optimum_step_seconds": None,
    },
    "train": {"steps": 20, "step_seconds_median": 0.125, "examples_per_second": 256.0, "mfu": None, "devices": 8},
    "error": None,
}
PLAN: dict[str, Any] = {
    "mesh": {"data": 4, "model": 2},
    "stages": [{"blocks": [0, 0]}],
    "groups": [
        {"id": 0, "axis": "data", "members": [], "reason": "the batch"},
        {"id": 3, "axis": "model", "members": [f"state/layer_{i}/wi" for i in range(12)], "reason": "saves compute"},
        {"id": 4, "axis": None, "members": ["state/<b>embed</b>"], "reason": "costs an all-gather"},
    ],
    "predicted": {
        "step_seconds": 0.1,
        "compute": 0.07,
        "communication": 0.03,
        "bubble": 0.0,
        "memory_bytes_per_device": {"parameters": 2**30, "optimizer": 2**31, "gradients": 2**30, "activations": 2**20},
    },
    "origin": {"searcher": "dqn"},
    "versions": {"jax": "0.10.2"},
}
CURVE = [
    {"seconds": float(i), "search/episode": i, "search/best_step_seconds": 0.4 / i, "evaluations": 9 * i}
    for i in range(1, 5)
]
STEPS = [
    {"train/step": i, "train/step_seconds": 0.125, "train/examples_per_second": 256.0, "train/out/loss": 1.0 / i}
    for i in range(1, 21)
]


class Checker(HTMLParser):
    """Collects the text, and what the page would load; refuses tags that do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text.append(data)


def check(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text())
    checker.close()
    assert checker._open == []
    return checker


def headings(path: Path) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", path.read_text())


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_report(
        path,
        summary=SUMMARY,
        plan=PLAN,
        parameters=[ParameterSharding("state/w<x>", (8, 4), "float32", (None, "model"), ("data", "model"))],
        search_curve=CURVE,
        steps=STEPS,
        environment={"rank_0": {"host": "<here>"}},
        device_memory_bytes=2**34,
    )
    return path


def test_all_sections(report: Path) -> None:
    assert headings(report) == [
        "Outcome",
        "Plan",
        "Candidates",
        "Search",
        "Predicted against measured",
        "Memory of a device",
        "Training",
        "Environment",
    ]


def test_it_loads_nothing_and_runs_nothing(report: Path) -> None:
    checker = check(report)
    assert checker.links == []
    assert "script" not in checker.tags
    assert "url(" not in report.read_text()
    assert "@import" not in report.read_text()
    assert "prefers-color-scheme: dark" in report.read_text()


def test_what_it_says(report: Path) -> None:
    text = " ".join(check(report).text)
    for expected in (
        "data 4 × model 2",
        "12 parameters",
        "saves compute",
        "250 ms (2.50 ×)",  # pure data parallelism against the chosen plan
        "does not fit",
        "chosen plan (dqn)",
        "2.50 ×",
        "Measured is 1.25 × predicted",
        "4 GiB",
        "25% of it is used",
        "2026-01-02 03:04:05 UTC",
        "36 plans evaluated",
        "(data, model)",
        "0.10.2",
    ):
        assert expected in text, expected


def test_text_of_the_user_is_escaped(report: Path, tmp_path: Path) -> None:
    source = report.read_text()
    assert "<b>embed</b>" not in source
    assert "state/&lt;b&gt;embed&lt;/b&gt;" in source
    assert "state/w&lt;x&gt;" in source
    assert "&lt;here&gt;" in source
    error = {"kind": "script", "message": "<script>alert(1)</script>", "rank": 1, "file": "train.py", "line": 7}
    failed = tmp_path / "failed.html"
    write_report(failed, summary={**SUMMARY, "status": "failed", "error": error})
    assert "<script>" not in failed.read_text()
    text = "".join(check(failed).text)
    assert "<script>alert(1)</script>" in text
    assert "script · rank 1 · train.py:7" in text


def test_what_was_not_reached_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    empty = {
        "status": "running",
        "run_id": "x",
        "cluster": dict.fromkeys(("name", "hosts")),
        "plan": {"found_by": None},
        "search": {"predicted_step_seconds": None, "baselines": None, "seconds": None},
        "train": {"steps": None, "mfu": None},
        "error": None,
    }
    write_report(path, summary=empty)
    assert headings(path) == ["Outcome"]
    assert "None" not in "".join(check(path).text)
    write_report(path, summary={**empty, "search": None, "train": None, "cluster": None, "plan": None})
    assert headings(path) == ["Outcome"]


def test_plans_that_the_search_left_out_are_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    reason = "left out, stages: a sort of the batch at train.py:7 needs the whole batch at once"
    write_report(path, summary=SUMMARY, plan=PLAN, left_out=[reason])
    candidates = path.read_text().partition("<h2>Candidates</h2>")[2].partition("<h2>")[0]
    assert f"<p>{reason}</p>" in candidates


def test_a_plan_that_was_not_trained_has_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, summary={**SUMMARY, "train": None}, plan=PLAN)
    assert headings(path) == [
        "Outcome",
        "Plan",
        "Candidates",
        "Predicted step time",
        "Memory of a device",
        "Environment",
    ]


def test_a_loss_that_turned_nan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    steps = [{**s, "train/out/loss": "NaN" if s["train/step"] >= 7 else s["train/out/loss"]} for s in STEPS]
    write_report(path, summary=SUMMARY, steps=steps)
    assert "loss is not finite at step 7." in "".join(check(path).text)


def test_without_a_loss_the_first_output_is_drawn_under_its_place(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, summary=SUMMARY, steps=[{"train/step": i, "train/out/2": 1.0 / i} for i in (1, 2, 3)])
    assert "<h3>output 2</h3>" in path.read_text()


def test_the_run_folder_is_read_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    lines = [*STEPS[:2], {"search/episode": 1}, {"train/step": 3, "train/out/loss": "Infinity"}]
    folder.metrics.write_text("\n".join(map(json.dumps, lines)) + '\n{"train/step": 4, "tra')  # cut by a crash
    folder.search_log.write_text("".join(json.dumps(c) + "\n" for c in CURVE))
    folder.environment(1).parent.mkdir()
    folder.environment(1).write_text('{"host": "b"}')
    folder.environment(0).write_text('{"host": "a"}')
    folder.environment(1).parent.mkdir(exist_ok=True)
    folder.environment(2).write_text("")  # the disk was full
    found = read_run(folder)
    assert found["search_curve"] == CURVE
    assert [s["train/step"] for s in found["steps"]] == [1, 2, 3]
    assert found["environment"] == {"rank_0": {"host": "a"}, "rank_1": {"host": "b"}}
    write_report(folder.report, summary=SUMMARY, plan=PLAN, **found)
    assert "loss is not finite at step 3." in "".join(check(folder.report).text)


def test_an_empty_run_folder_has_nothing(tmp_path: Path) -> None:
    assert read_run(RunFolder(tmp_path)) == {"search_curve": [], "steps": [], "environment": {}}


def test_the_table_of_shardings_is_of_the_state(tmp_path: Path) -> None:
    step = TrainStep(
        identity=StepIdentity("train_step", None),
        frontend="jax",
        arguments=(
            Argument("state/w", (8, 4), "float32", "state"),
            Argument("batch/x", (32, 8), "float32", "batch"),
        ),
        results=(Result("0/w", (8, 4), "float32", replaces=0), Result("1", (), "float32")),
        modules={"cpu": b""},
        fingerprint="f",
    )
    layout = Layout(
        mesh={"data": 4, "model": 2},
        compute=((None, "model"), ("data", None)),
        storage=(("data", "model"), ("data", None)),
        results=(("data", "model"), ()),
    )
    assert parameter_shardings(step, layout) == [
        ParameterSharding("state/w", (8, 4), "float32", (None, "model"), ("data", "model"))
    ]


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, report: Path) -> None:
    before = report.read_text()
    with pytest.raises(TypeError):
        write_report(report, summary=SUMMARY, environment={"rank_0": {1: "a", "b": 2}})  # keys that do not compare
    assert report.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_loss_of_nan_alone_draws_no_chart(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, summary=SUMMARY, steps=[{"train/step": i, "train/out/loss": math.nan} for i in (1, 2)])
    assert "<svg" not in path.read_text()
