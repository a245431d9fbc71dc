from __future__ import annotations

import time
from pathlib import Path

import pytest

from automap_launch.launcher.failure import FailureRecord

RECORD = FailureRecord(1, "host", time.time(), "script", "ValueError: x", 1, "train.py", 3, "Traceback\n  ...")


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "rank_1.failure.json"
    RECORD.save(path)
    assert FailureRecord.load(path) == RECORD
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


def test_a_worker_that_cannot_write_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    RECORD.save(tmp_path / "logs" / "rank_1.failure.json")
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"rank": 1}', '{"unknown": 1}'])
def test_what_cannot_be_read_is_none(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "rank_1.failure.json"
    if text is not None:
        path.write_text(text)
    assert FailureRecord.load(path) is None


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="'crash'"):
        FailureRecord(0, "host", 0.0, "crash", "x", 1)
