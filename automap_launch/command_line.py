"""The argument vector: Hydra's part, our own flags, and the user's script after the first bare `--`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from automap_launch.errors import ConfigError

TWO_WAYS = (
    "name the training script after `--`, as in\n"
    "    automap-launch cluster=local -- train.py --lr 1e-3\n"
    "or use a recipe, as in\n"
    "    automap-launch +recipe=quickstart"
)


@dataclass(frozen=True)
class CommandLine:
    """`overrides`: what Hydra gets. `as_json`: `--json` was given: stdout carries the summary's path alone."""

    overrides: tuple[str, ...]
    as_json: bool


def split(arguments: Sequence[str]) -> CommandLine:
    """Splits an argument vector (without the program's name).

    What follows the first bare `--` becomes overrides of `entry`, so that the composed config alone reproduces the
    run. `-- -m package.module ...` names a module. Arguments alone, `-- --steps 20`, are for a recipe's program.

    Raises:
      ConfigError: nothing follows `--`, or `-m` without a module.
    """
    arguments = list(arguments)
    script: list[str] | None = None
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, script = arguments[:cut], arguments[cut + 1 :]
    as_json = "--json" in arguments
    overrides = [a for a in arguments if a != "--json"]
    if script is not None:
        overrides += _entry_overrides(script)
    return CommandLine(tuple(overrides), as_json)


def _entry_overrides(script: list[str]) -> list[str]:
    if not script:
        raise ConfigError("nothing follows `--`", hint=TWO_WAYS)
    if script[0] == "-m":
        if len(script) < 2:
            raise ConfigError("`-- -m` is followed by no module", hint="write it as `-- -m package.module [arguments]`")
        where, args = ["entry.script=null", f"entry.module={quote(script[1])}"], script[2:]
    elif script[0].startswith("-"):
        return [f"entry.args=[{','.join(map(quote, script))}]"]  # for the program that a recipe names
    else:
        where, args = [f"entry.script={quote(script[0])}", "entry.module=null"], script[1:]
    return [*where, "entry.from_command_line=true", f"entry.args=[{','.join(map(quote, args))}]"]


def quote(text: str) -> str:
    """`text` as a quoted string of Hydra's override grammar that composes to the very same text.

    Backslashes are special before a quote only, and `${` would start an interpolation.
    """
    text = text.replace("${", "\\${")
    parts = []
    for index, part in enumerate(text.split("'")):
        if index:
            parts.append("\\'")
        trailing = len(part) - len(part.rstrip("\\"))
        parts.append(part + "\\" * trailing)
    return "'" + "".join(parts) + "'"
