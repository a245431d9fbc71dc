"""Run folders are never shared."""

import multiprocessing
from pathlib import Path

from automap_launch.run_folder import RunFolder, new_run_folder


def test_launches_of_the_same_second_get_different_folders(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        folders = pool.map(new_run_folder, [str(tmp_path)] * 20)
    assert len(set(folders)) == 20
    assert all(Path(folder).is_dir() for folder in folders)


def test_paths_in_the_summary_are_relative(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.relative(folder.rank_log(3, attempt=2)) == "logs/rank_3.attempt_2.log"
