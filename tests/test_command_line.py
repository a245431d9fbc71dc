"""The argument vector: what Hydra gets, and that the script's own arguments survive unchanged."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from automap_launch import command_line
from automap_launch.errors import ConfigError

AWKWARD = [
    "--lr",
    "1e-3",
    "",
    "a b",
    "it's",
    'say "hi"',
    "back\\slash",
    "trailing\\",
    "quote\\'",
    "\\\\",
    "${not.an.interpolation}",
    "${env:HOME}",
    "$HOME",
    "[1,2]",
    "{a:1}",
    "key=value",
    "null",
    "true",
    "a,b",
    "été",
    "--",
    "tab\there",
    "new\nline",
]


def composed(text: str) -> str:
    """What Hydra makes of the override `x=[text quoted]`."""
    override = OverridesParser.create().parse_override(f"x=[{command_line.quote(text)}]")
    return str(OmegaConf.create({"x": override.value()}).x[0])


@pytest.mark.parametrize("text", AWKWARD)
def test_quoted_argument_composes_to_itself(text: str) -> None:
    assert composed(text) == text


def test_everything_after_the_first_bare_dashes_is_the_scripts() -> None:
    line = command_line.split(["cluster=local", "--json", "--", "train.py", "--json", "--", "x"])
    assert line.as_json
    assert line.overrides[0] == "cluster=local"
    assert "entry.script='train.py'" in line.overrides
    assert "entry.args=['--json','--','x']" in line.overrides


def test_module() -> None:
    line = command_line.split(["--", "-m", "pkg.mod", "--epochs", "3"])
    assert "entry.module='pkg.mod'" in line.overrides
    assert "entry.script=null" in line.overrides
    assert "entry.args=['--epochs','3']" in line.overrides


def test_without_dashes_the_entry_is_left_to_the_recipe() -> None:
    assert command_line.split(["+recipe=quickstart"]).overrides == ("+recipe=quickstart",)


@pytest.mark.parametrize("arguments", [["--"], ["--", "-m"]])
def test_nothing_to_run_says_how_to_write_it(arguments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        command_line.split(arguments)
    assert "--" in str(caught.value.hint)


def test_arguments_alone_are_for_the_program_of_the_recipe() -> None:
    assert command_line.split(["+recipe=x", "--", "--steps", "20"]).overrides == (
        "+recipe=x",
        "entry.args=['--steps','20']",
    )
