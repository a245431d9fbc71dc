import json
import math
import resource
from pathlib import Path

import pytest

from automap_launch.tracking.jsonl import JsonlBackend, LineFile


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_on_disk_at_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    backend = JsonlBackend(tmp_path / "metrics.jsonl", tmp_path / "search.jsonl", warnings.append)
    backend.metrics({"train/step": 1, "train/out/loss": math.nan, "train/mfu": None})
    (line,) = read(tmp_path / "metrics.jsonl")  # before anything was closed
    assert isinstance(line.pop("time"), float)
    assert line == {"train/step": 1, "train/out/loss": "NaN", "train/mfu": None}
    backend.search({"search/episode": 3, "improvement": {"sharded": frozenset({2, 1})}})
    assert read(tmp_path / "search.jsonl")[0]["improvement"] == {"sharded": [1, 2]}
    backend.close(0)
    assert warnings == []


def test_an_existing_file_is_appended_to(tmp_path: Path) -> None:
    for i in range(2):
        file = LineFile(tmp_path / "a.jsonl", pytest.fail)
        file.write({"i": i})
        file.close()
    assert read(tmp_path / "a.jsonl") == [{"i": 0}, {"i": 1}]


def test_a_full_disk_gives_one_warning() -> None:
    warnings: list[str] = []
    file = LineFile(Path("/dev/full"), warnings.append)
    for i in range(100):
        file.write({"i": i})
    file.close()
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert file.lost == 100


def test_a_folder_that_is_gone_gives_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    file = LineFile(tmp_path / "gone" / "a.jsonl", warnings.append)
    file.write({"i": 1})
    file.close()
    assert len(warnings) == 1
    assert "gone/a.jsonl" in warnings[0]


def test_writing_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    """The line that the disk had no room for is torn; the lines before and after it are whole."""
    path = tmp_path / "a.jsonl"
    warnings: list[str] = []
    file = LineFile(path, warnings.append)
    file.write({"i": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        file.write({"i": 1, "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.write({"i": 2})
    file.close()
    first, torn, last = path.read_text().splitlines()
    assert json.loads(first) == {"i": 0}
    assert len(torn) == 10
    assert json.loads(last) == {"i": 2}
    assert len(warnings) == 1
