"""Trax made compatible: each fix does what it is for, and what no plan can train is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from automap_launch.errors import ConfigError
from automap_launch.frontends.trax import hook
from automap_launch.frontends.trax.files import Files
from tests.runtime import device_checks

FILE = "../frontends/trax/compatibility_checks.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return device_checks.run(FILE, devices=1)


@pytest.mark.parametrize("name", device_checks.names(FILE))
def test_trax(outcome: dict[str, str], name: str) -> None:
    assert outcome[name] == "", outcome[name]


def test_another_version_of_trax_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.importlib.metadata, "version", lambda name: "1.5.0")
    with pytest.raises(ConfigError, match=r"trax 1\.5\.0 is installed.*works with trax ==1\.4\.1"):
        hook.check_version()


def test_files_of_this_machine_need_no_tensorflow(tmp_path: Path) -> None:
    files, folder = Files(writes=True), tmp_path / "a" / "b"
    files.makedirs(folder)
    files.makedirs(folder)
    for name, text in (("one", "ä"), ("two", "b")):
        with files.GFile(folder / name, "w") as file:
            file.write(text)
    assert sorted(files.listdir(folder)) == ["one", "two"]
    assert files.glob(str(folder / "o*")) == [str(folder / "one")]
    with pytest.raises(FileExistsError, match="not to be overwritten"):
        files.rename(folder / "one", folder / "two")
    files.rename(folder / "one", folder / "two", overwrite=True)
    assert not files.exists(folder / "one")
    with files.GFile(folder / "two") as file:
        assert file.read() == "ä"
    files.remove(folder / "two")
    files.rmtree(tmp_path / "a")
    assert not files.isdir(tmp_path / "a")


def test_another_copy_of_the_script_drops_what_it_writes_to_remote_storage() -> None:
    files = Files(writes=False)
    files.makedirs("gs://bucket/run")
    with files.GFile("gs://bucket/run/model", "wb") as file:
        file.write(b"dropped")
    files.rename("gs://bucket/run/a", "gs://bucket/run/b", overwrite=True)
    files.remove("gs://bucket/run/b")
    files.rmtree("gs://bucket/run")
