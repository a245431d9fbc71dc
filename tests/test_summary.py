"""`summary.json`: complete from the first write on, atomic, and strict about its fields."""

import json
from pathlib import Path

import pytest

from automap_launch.errors import PlanError, ScriptError
from automap_launch.summary import Summary


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_every_field_is_there_from_the_start_and_null_until_reached(tmp_path: Path) -> None:
    Summary(tmp_path / "summary.json", "train")
    record = read(tmp_path / "summary.json")
    assert record["status"] == "running"
    assert record["search"]["agent"] == dict.fromkeys(("best_step_seconds", "seconds", "gap", "fine_tuned"))
    assert record["train"]["mfu"] is None
    assert record["error"] is None


def test_sections_are_merged_field_by_field(tmp_path: Path) -> None:
    summary = Summary(tmp_path / "summary.json", "plan")
    summary.update(search={"seconds": 1.5})
    summary.update(search={"evaluations": 7, "baselines": {"single": None}})
    search = read(tmp_path / "summary.json")["search"]
    assert (search["seconds"], search["evaluations"], search["baselines"]) == (1.5, 7, {"single": None})


def test_an_unknown_field_is_a_defect(tmp_path: Path) -> None:
    summary = Summary(tmp_path / "summary.json", "plan")
    with pytest.raises(KeyError, match=r"summary.search has no field 'second'"):
        summary.update(search={"second": 1})


def test_failures_tell_ours_from_the_scripts(tmp_path: Path) -> None:
    summary = Summary(tmp_path / "summary.json", "train")
    summary.fail(PlanError("no such group", file="train.py", line=3))
    error = read(tmp_path / "summary.json")["error"]
    assert (error["kind"], error["exit_code"], error["line"], error["rank"]) == ("plan", 6, 3, None)
    summary.fail(ScriptError("boom", exit_code=3, rank=1, host="a"))
    record = read(tmp_path / "summary.json")
    assert (record["status"], record["exit_code"], record["error"]["kind"]) == ("failed", 3, "script")
    assert record["error"]["rank"] == 1


def test_a_full_disk_leaves_the_old_record_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = Summary(tmp_path / "summary.json", "train")

    def full_disk(self: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    summary.update(phase="search")
    summary.succeed()
    assert capsys.readouterr().err.count("No space left on device") == 1
    monkeypatch.undo()
    assert read(tmp_path / "summary.json")["phase"] == "config"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
