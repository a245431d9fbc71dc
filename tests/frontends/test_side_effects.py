"""What a redirected process writes, reads back, removes and leaves alone."""

from __future__ import annotations

import csv
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from automap_launch.frontends.side_effects import announce_writes, redirect_writes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script's folder, with a file of its own; it is the working folder."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "data.txt").write_text("old\n")
    (work / "results").mkdir()
    (work / "results" / "log.csv").write_text("step,loss\n")
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def redirected(folder: Path, tmp_path: Path) -> Iterator[Path]:
    undo = redirect_writes(tmp_path / "elsewhere")
    yield tmp_path / "elsewhere"
    undo()


def snapshot(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


def test_every_way_of_writing_leaves_the_original_folder_as_it_was(folder: Path, tmp_path: Path) -> None:
    before = snapshot(folder)
    undo = redirect_writes(tmp_path / "elsewhere")
    try:
        Path("a.txt").write_text("a")
        with open("b.pkl", "wb") as file:
            pickle.dump({"w": [1, 2]}, file)
        np.save("c.npy", np.arange(3))
        with open("results/log.csv", "a", newline="") as file:
            csv.writer(file).writerow([1, 0.5])
        descriptor = os.open("d.bin", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"d")
        os.close(descriptor)
        os.makedirs("deep/er", exist_ok=True)
        shutil.copy("data.txt", "deep/er/copy.txt")
        os.replace("a.txt", "data.txt")
        shutil.rmtree("results")
        os.truncate("deep/er/copy.txt", 0)
    finally:
        undo()
    assert snapshot(folder) == before


def test_reading_follows_what_was_written(redirected: Path) -> None:
    with open("results/log.csv", "a") as file:
        file.write("1,0.5\n")
    assert Path("results/log.csv").read_text() == "step,loss\n1,0.5\n"
    np.save("c.npy", np.arange(3))
    assert np.load("c.npy").tolist() == [0, 1, 2]
    assert os.path.getsize("c.npy") == Path("c.npy").stat().st_size > 0
    with open("data.txt", "r+") as file:
        file.write("new")
    assert Path("data.txt").read_text() == "new\n"


def test_listings_show_both_old_and_new(redirected: Path) -> None:
    Path("results/new.txt").write_text("n")
    assert sorted(os.listdir("results")) == ["log.csv", "new.txt"]
    with os.scandir("results") as entries:
        assert sorted(e.name for e in entries) == ["log.csv", "new.txt"]
    assert sorted(p.name for p in Path("results").iterdir()) == ["log.csv", "new.txt"]
    assert sorted(p.name for p in Path().glob("*/*")) == ["log.csv", "new.txt"]
    assert [f for _, _, files in os.walk("results") for f in sorted(files)] == ["log.csv", "new.txt"]


def test_what_is_removed_or_renamed_is_gone_for_the_script(redirected: Path) -> None:
    os.remove("data.txt")
    assert not os.path.exists("data.txt")
    assert "data.txt" not in os.listdir()
    with pytest.raises(FileNotFoundError):
        Path("data.txt").read_text()
    with pytest.raises(FileNotFoundError):
        os.remove("data.txt")
    os.rename("results", "renamed")
    assert Path("renamed/log.csv").read_text() == "step,loss\n"
    assert not Path("results").exists()
    Path("tmp").write_text("1")
    os.replace("tmp", "data.txt")
    assert Path("data.txt").read_text() == "1"
    assert not Path("tmp").exists()


def test_a_folder_made_anew_after_its_removal_is_empty(redirected: Path) -> None:
    shutil.rmtree("results")
    os.makedirs("results")
    assert os.listdir("results") == []
    with pytest.raises(FileNotFoundError):
        shutil.rmtree("nowhere")
    shutil.rmtree("nowhere", ignore_errors=True)


def test_errors_are_those_of_an_ordinary_run(redirected: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Path("no/such/folder.txt").write_text("x")
    with pytest.raises(FileExistsError):
        os.mkdir("results")
    with pytest.raises(FileExistsError):
        Path("data.txt").touch(exist_ok=False)
    with pytest.raises(FileNotFoundError, match=r"'missing.txt'"):
        Path("missing.txt").read_text()


def test_beside_a_process_that_writes_in_place_existing_is_no_error(folder: Path, tmp_path: Path) -> None:
    undo = redirect_writes(tmp_path / "elsewhere", shared=True)
    try:
        os.mkdir("results")
        with open("data.txt", "x") as file:
            file.write("mine")
        assert Path("data.txt").read_text() == "mine"
        with pytest.raises(FileExistsError):
            os.mkdir("results")
    finally:
        undo()


def test_what_another_process_makes_meanwhile_is_not_there_yet(folder: Path, tmp_path: Path) -> None:
    """Two copies of a script, one after the other: the second finds the folder as the first one did."""
    announced: set[str] = set()

    def script() -> list[object]:
        seen: list[object] = [os.path.exists("run"), sorted(os.listdir("."))]
        os.makedirs("run/a")
        with open("run/a/log.txt", "a") as file:
            file.write("mine")
        Path("run/new").write_text("")
        os.replace("run/new", "run/renamed")
        seen += [Path("run/a/log.txt").read_text(), sorted(os.listdir("run")), sorted(os.listdir("."))]
        with pytest.raises(FileExistsError):
            os.mkdir("results")
        return seen

    undo = announce_writes(announced.add, (), tmp_path / "logs")
    try:
        first = script()
    finally:
        undo()
    (folder / "stop").touch()  # by the user, who tells both
    undo = redirect_writes(tmp_path / "elsewhere", made_elsewhere=announced.__contains__)
    try:
        assert os.path.exists("stop")
        (folder / "stop").unlink()
        second = script()
    finally:
        undo()
    assert first == second
    assert first[:2] == [False, ["data.txt", "results"]]
    assert announced == {str(folder / name) for name in ("run", "run/a", "run/a/log.txt", "run/new", "run/renamed")}


def test_devices_pipes_descriptors_and_temporary_files_are_untouched(redirected: Path, folder: Path) -> None:
    with open(os.devnull, "w") as file:
        file.write("x")
    read, write = os.pipe()
    with open(write, "w") as file:
        file.write("through")
    with open(read) as file:
        assert file.read() == "through"
    with tempfile.TemporaryDirectory() as name:
        inside = Path(name) / "t.txt"
        inside.write_text("t")
        assert not (redirected / str(inside)[1:]).exists()
    with tempfile.NamedTemporaryFile() as temporary:
        assert not (redirected / temporary.name[1:]).exists()
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as temporary:
        temporary.write("whole")
    os.replace(temporary.name, "checkpoint")
    assert Path("checkpoint").read_text() == "whole"
    assert not os.path.exists(temporary.name)
    assert (redirected / str(folder / "checkpoint")[1:]).exists()
    assert list(folder.rglob("tmp*")) == []
    os.mkfifo(folder / "fifo")
    reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
    with open("fifo", "wb") as pipe:
        pipe.write(b"p")
    assert os.read(reader, 1) == b"p"
    os.close(reader)


def test_packages_that_write_in_place_are_left_alone(folder: Path, tmp_path: Path) -> None:
    undo = redirect_writes(tmp_path / "elsewhere", in_place=("orbax",))
    try:
        exec(
            compile("from pathlib import Path\nPath('shard').write_text('s')", "saver.py", "exec"),
            {"__name__": "orbax.checkpoint.saver"},
        )
    finally:
        undo()
    assert (folder / "shard").read_text() == "s"


def test_undo_puts_the_original_functions_back(folder: Path, tmp_path: Path) -> None:
    before = open, os.stat, os.rename, shutil.rmtree
    redirect_writes(tmp_path / "elsewhere")()
    assert (open, os.stat, os.rename, shutil.rmtree) == before
    Path("plain.txt").write_text("p")
    assert (folder / "plain.txt").exists()


def test_a_folder_that_was_made_can_be_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "data.txt").write_text("given")
    monkeypatch.chdir(tmp_path)
    undo = redirect_writes(tmp_path / "elsewhere")
    try:
        os.makedirs("results/deep")
        os.chdir("results")
        assert os.getcwd() == str(tmp_path / "results")
        assert Path("../data.txt").read_text() == "given"
        Path("out.txt").write_text("made")
        os.chdir("deep")
        assert Path("../out.txt").read_text() == "made"
        os.chdir(tmp_path)
        assert Path("results/out.txt").read_text() == "made"
        assert Path("data.txt").read_text() == "given"
    finally:
        undo()
        os.chdir(tmp_path)
    assert not (tmp_path / "results").exists()
