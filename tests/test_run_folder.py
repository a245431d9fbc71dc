"""Run folders are never shared."""

import multiprocessing
from pathlib import Path

import pytest

from automap_launch.errors import ConfigError
from automap_launch.run_folder import RunFolder, new_run_folder


def test_launches_of_the_same_second_get_different_folders(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        folders = pool.map(new_run_folder, [str(tmp_path)] * 20)
    assert len(set(folders)) == 20
    assert all(Path(folder).is_dir() for folder in folders)


def _claim(folder: str) -> bool:
    try:
        RunFolder(Path(folder)).claim()
    except ConfigError:
        return False
    return True


def test_a_folder_named_by_the_user_is_one_launchs_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "mine")
    folder.check_free()
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_claim, [str(folder.root)] * 8).count(True) == 1
    with pytest.raises(ConfigError, match=r"mine is that of another launch"):
        folder.check_free()


def test_paths_in_the_summary_are_relative(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.relative(folder.rank_log(3, attempt=2)) == "logs/rank_3.attempt_2.log"
