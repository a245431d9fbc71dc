"""Something done the moment a module is imported, before the statement that imports it goes on."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from automap_launch.frontends.import_hook import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module that takes a name from it while it is imported."""
    name = "imported_by_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("value = 1\n")
    (folder / "inner.py").write_text(f"from {name} import value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def test_done_when_the_module_is_complete_and_before_its_importer_goes_on(package: str) -> None:
    def change(module: types.ModuleType) -> None:
        assert module.value == 1
        module.value = 2

    when_imported(package, change)
    assert importlib.import_module(f"{package}.inner").value == 2


def test_done_once_and_of_a_submodule(package: str) -> None:
    seen = []
    when_imported(f"{package}.inner", seen.append)
    importlib.import_module(package)
    assert seen == []
    inner = importlib.import_module(f"{package}.inner")
    importlib.reload(inner)
    assert seen == [inner]
    assert inner.__spec__.loader.get_source(inner.__name__).startswith("from")


def test_at_once_for_what_is_there(package: str) -> None:
    module = importlib.import_module(package)
    seen = []
    when_imported(package, seen.append)
    assert seen == [module]


def test_taken_back(package: str) -> None:
    seen = []
    when_imported(package, seen.append)()
    importlib.import_module(package)
    assert seen == []


def test_a_module_that_is_not_there_is_missed_as_ever(package: str) -> None:
    when_imported(f"{package}.absent", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="absent"):
        importlib.import_module(f"{package}.absent")
