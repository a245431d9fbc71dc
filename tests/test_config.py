"""The config: every option composes and validates; what is wrong is named with what is valid."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from automap_launch import recipe_group
from automap_launch.config import Config, EntryConfig, resolve_entry, to_config, unknown_key_error
from automap_launch.errors import ConfigError
from automap_launch.resources import conf_folder, recipes_folder

OPTIONS = sorted(
    f"{path.parent.name}={path.stem}" for path in conf_folder().glob("*/*.yaml") if path.parent.name != "hydra"
)
RECIPES = sorted(path.stem for path in recipes_folder().glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def _hydra() -> Iterator[None]:
    recipe_group.register()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        yield


def config(*overrides: str) -> Config:
    return to_config(compose("config", list(overrides)))


def test_the_files_and_the_schema_agree_on_the_defaults() -> None:
    assert config() == Config()


def test_the_files_name_every_setting() -> None:
    """Hydra takes `KEY=VALUE` only for keys that are there, and `--help` shows no others."""

    def missing(settings: object, node: DictConfig, path: str) -> Iterator[str]:
        for field in dataclasses.fields(settings):  # type: ignore[arg-type]
            value = getattr(settings, field.name)
            if field.name not in node:
                yield path + field.name
            elif dataclasses.is_dataclass(value):
                yield from missing(value, node[field.name], f"{path}{field.name}.")

    # A cluster is found, read from a file, or written out: `cluster=local` has what the first of these needs.
    found = missing(Config(), compose("config"), "")
    assert [key for key in found if not key.startswith("cluster.")] == []


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_is_valid(option: str) -> None:
    group, name = option.split("=")
    assert getattr(config(option), group) is not None, name


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_valid_and_its_program_exists(name: str) -> None:
    entry = resolve_entry(config(f"+recipe={name}").entry, [])
    assert entry.module is not None or Path(str(entry.script)).is_file()


def test_the_command_line_overrides_a_recipes_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    overrides = ["entry.script='mine.py'", "entry.module=null", "entry.from_command_line=true", "entry.args=['-x']"]
    entry = resolve_entry(config("+recipe=quickstart", *overrides).entry, [])
    assert (entry.script, entry.args) == (str(tmp_path / "mine.py"), ("-x",))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["mode=calibrate", "cluster=v100_4x8"], ["mode=calibrate measures this machine", "got v100_4x8"]),
        (["mode=trian"], ["mode", "train, capture, plan, run", "trian"]),
        (["search.budget=soon"], ["search.budget", "soon", "2h"]),
        (["search.seed=abc"], ["search.seed", "abc"]),
        (["search.pin.cuts='[1,2]'"], ["search.pin.cuts is a list, got '[1,2]'", "search.pin.cuts=[FIRST,SECOND]"]),
        (["search.pin.cuts=[1,x]"], ["search.pin.cuts[1]", "search.pin.cuts=VALUE"]),
        (["search.pin=3"], ["search.pin is a section, got 3", "micro_batches"]),
        (["launcher.processes=0"], ["launcher.processes", "0"]),
        (["mode=run"], ["plan="]),
        (["plan=x.yaml"], ["mode=run"]),
        (["+nonsense=1"], ["nonsense", "mode, plan, entry"]),
        (["+search.bugdet=1"], ["search.bugdet", "did you mean `search.budget`?"]),
        (["+search.pin.dat=1"], ["search.pin.dat", "did you mean `search.pin.data`?"]),
        (["cluster=v100_8x8", "+cluster.devices=4"], ["cluster.devices", "cluster=local"]),
    ],
)
def test_a_wrong_value_or_key_is_named_with_what_is_valid(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*overrides)
    said = f"{caught.value.message} {caught.value.hint}"
    assert [word for word in words if word not in said] == []


def test_a_typo_that_hydra_itself_refuses_gets_the_same_help() -> None:
    error = unknown_key_error("launcher.proceses")
    assert "did you mean `launcher.processes`?" in str(error.hint)


def test_no_program_shows_the_two_ways() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_entry(EntryConfig(), [])
    assert "-- train.py" in str(caught.value.hint)
    assert "+recipe=" in str(caught.value.hint)


def test_a_missing_script_names_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_lm.py").touch()
    with pytest.raises(ConfigError) as caught:
        resolve_entry(EntryConfig(script="train_ml.py", from_command_line=True), [])
    assert str(tmp_path) in str(caught.value.hint)
    assert "train_lm.py" in str(caught.value.hint)


def test_a_recipe_of_the_users_own_finds_its_script_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.py").touch()
    assert resolve_entry(EntryConfig(script="sub/own.py"), [tmp_path]).script == str(tmp_path / "sub" / "own.py")
