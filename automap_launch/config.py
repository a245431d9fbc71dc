"""The whole config: Hydra composes it, this module checks it and turns it into dataclasses.

Each group's dataclass lives with its owner and validates itself at construction; here they are put together.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from automap_launch.cluster.config import ClusterConfig
from automap_launch.command_line import TWO_WAYS
from automap_launch.errors import ConfigError
from automap_launch.frontends.config import FrontendConfig
from automap_launch.launcher.config import LauncherConfig
from automap_launch.resources import recipes_folder
from automap_launch.search.config import SearchConfig
from automap_launch.tracking.config import TrackingConfig
from automap_launch.train_step import Entry

MODES = ("train", "capture", "plan", "run", "calibrate")


@dataclass
class EntryConfig:
    """The user's program: a script or a module, and its own arguments.

    A relative `script` of a recipe is looked for beside the recipe, then in the working folder; one from the command
    line (`from_command_line`) in the working folder alone.
    """

    script: str | None = None
    module: str | None = None
    args: list[str] = field(default_factory=list)
    from_command_line: bool = False


@dataclass
class Config:
    """Everything that a launch depends on.

    Attributes:
      mode: `train`: all of it. `capture`: the train step alone. `plan`: capture and search; needs no device.
        `run`: train with the plan in `plan`, without a search. `calibrate`: measure this machine; needs no program.
      plan: a plan file, for `mode=run`.
    """

    mode: str = "train"
    plan: str | None = None
    entry: EntryConfig = field(default_factory=EntryConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    frontend: FrontendConfig = field(default_factory=FrontendConfig)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is one of {', '.join(MODES)}, got {self.mode!r}")
        if self.mode == "run" and self.plan is None:
            raise ValueError("mode=run needs a plan file: add plan=outputs/.../plan.yaml")
        if self.mode != "run" and self.plan is not None:
            raise ValueError(f"plan={self.plan} goes with mode=run, got mode={self.mode}")
        if self.mode == "calibrate" and not self.cluster.is_local:
            named = self.cluster.file or self.cluster.name
            raise ValueError(f"mode=calibrate measures this machine: it goes with cluster=local, got {named}")


def to_config(composed: DictConfig) -> Config:
    """Checks a composed config against the schema.

    Raises:
      ConfigError: an unknown key, a value of the wrong type, or a value out of its range; the message names the key
        and what is valid.
    """
    schema = OmegaConf.structured(Config)
    _check_kinds(schema, composed)
    try:
        config = OmegaConf.to_object(OmegaConf.merge(schema, composed))
    except ConfigKeyError as error:
        raise _unknown_key(error) from error
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0]
        overridden = str(error.full_key).partition("[")[0]  # of an element, its whole list
        raise ConfigError(f"{error.full_key}: {reason}", hint=f"override it as {overridden}=VALUE") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    assert isinstance(config, Config)
    return config


def _check_kinds(schema: DictConfig, given: DictConfig, section: str = "") -> None:
    """Lists and sections stand where the schema has them: OmegaConf's own message names its classes, and no key.

    Raises:
      ConfigError: something else stands there.
    """
    for name in map(str, schema):
        key, expected = f"{section}{name}", schema._get_node(name)
        value = given.get(name)
        if isinstance(expected, ListConfig) and not (value is None or isinstance(value, ListConfig)):
            raise ConfigError(f"{key} is a list, got {value!r}", hint=f"override it as {key}=[FIRST,SECOND]")
        if not isinstance(expected, DictConfig) or value is None:
            continue
        if not isinstance(value, DictConfig):
            names = ", ".join(map(str, expected)) or "NAME"
            raise ConfigError(
                f"{key} is a section, got {value!r}", hint=f"override its keys as {key}.KEY=VALUE: {names}"
            )
        if not expected._is_none():
            _check_kinds(expected, value, f"{key}.")


def valid_keys(section: str) -> list[str]:
    """Keys of the section `a.b` of the config; empty when it is no section."""
    node: Any = OmegaConf.structured(Config)
    for part in filter(None, section.split(".")):
        node = node.get(part) if isinstance(node, DictConfig) and part in node else None
    return [str(key) for key in node] if isinstance(node, DictConfig) else []


def unknown_key_error(key: str) -> ConfigError:
    """The error for the key `a.b.c` that no schema knows: it lists what there is and the nearest name."""
    if key == "recipe":
        return ConfigError("a recipe is added, not overridden", hint="write it with a plus sign: +recipe=NAME")
    section, _, name = key.rpartition(".")
    while section and not valid_keys(section):
        section, _, name = section.rpartition(".")
    names = valid_keys(section)
    if name in names and "." not in key[len(section) + 1 :]:
        return ConfigError(f"`{key}` is not set by the options chosen", hint=f"to set it all the same: +{key}=VALUE")
    near = difflib.get_close_matches(name, names, n=1)
    prefix = f"{section}." if section else ""
    guess = f"did you mean `{prefix}{near[0]}`? " if near else ""
    where = f"`{section}`" if section else "the config"
    return ConfigError(f"unknown key `{key}`", hint=f"{guess}{where} has: {', '.join(names)}")


def _unknown_key(error: ConfigKeyError) -> ConfigError:
    return unknown_key_error(str(error.full_key or error.key))


def resolve_entry(config: EntryConfig, recipe_folders: list[Path]) -> Entry:
    """The program to run, its script as an absolute path.

    Raises:
      ConfigError: neither or both of script and module are named, or the script does not exist.
    """
    if config.script is not None and config.module is not None:
        raise ConfigError(
            f"entry names both a script ({config.script}) and a module ({config.module})",
            hint="set one of entry.script and entry.module to null",
        )
    args = tuple(config.args)
    if config.module is not None:
        return Entry(module=config.module, args=args)
    if config.script is None:
        raise ConfigError("no program to run", hint=TWO_WAYS)
    here = Path.cwd()
    folders = [here] if config.from_command_line else [*recipe_folders, recipes_folder(), here]
    for folder in folders:
        script = (folder / config.script).resolve()
        if script.is_file():
            return Entry(script=str(script), args=args)
    looked = ", ".join(dict.fromkeys(str(f) for f in folders))
    hint = f"looked in: {looked}" + _similar(config.script, folders)
    raise ConfigError(f"there is no script {config.script}", hint=hint)


def _similar(script: str, folders: list[Path]) -> str:
    names = [p.name for folder in folders if folder.is_dir() for p in folder.glob("*.py")]
    near = difflib.get_close_matches(Path(script).name, names, n=3)
    return f". Near it: {', '.join(near)}" if near else ""
