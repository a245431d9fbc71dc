"""The console script `automap-launch`: argument vector, Hydra, exit codes. What a launch does is in `workflow.py`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from automap_launch import command_line, recipe_group
from automap_launch.config import to_config, unknown_key_error
from automap_launch.errors import AutomapError, ConfigError
from automap_launch.hydra_internals import option_parser
from automap_launch.interruption import Interrupted
from automap_launch.resources import conf_folder
from automap_launch.run_folder import RunFolder, new_run_folder
from automap_launch.terminal import Terminal


def main() -> None:
    """Entry point of the console script; `python -m automap_launch` is the same. Leaves through `sys.exit`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    ours = list(arguments)[: list(arguments).index("--")] if "--" in arguments else arguments
    if "--version" in ours:
        print(f"automap-launch {version('automap-launch')}")
        return 0
    terminal = Terminal(as_json="--json" in ours)
    try:
        line = command_line.split(arguments)
        return _compose_and_launch(line.overrides, terminal)
    except AutomapError as error:
        terminal.error(error)
        terminal.no_summary()
        return error.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough (`--help | head`). Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _compose_and_launch(overrides: Sequence[str], terminal: Terminal) -> int:
    _check_overrides(overrides)
    _check_run_folder(overrides)
    recipe_group.register()
    OmegaConf.register_new_resolver("new_run_folder", new_run_folder, use_cache=True, replace=True)
    # Hydra would print the error and end with 1; this makes it hand every error to us.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    exit_codes: list[int] = []

    def launch(composed: DictConfig) -> None:
        exit_codes.append(_launch(composed, terminal))

    sys.argv = [sys.argv[0], *overrides]
    try:
        _hydra_main(launch)()
    except HydraException as error:
        raise _config_error(error) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a config file is no YAML: {' '.join(str(error).split())}") from error
    except BrokenPipeError:
        raise
    except (OSError, OmegaConfBaseException) as error:
        raise _no_run_folder(error) from error
    finally:
        os.environ.pop("HYDRA_FULL_ERROR", None)
    return next((code for code in exit_codes if code), 0)


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override that Hydra cannot read: it would not say which one it is."""
    parser = OverridesParser.create()
    for override in _settings(overrides):
        try:
            parser.parse_override(override)
        except HydraException as error:
            hint = "settings are KEY=VALUE; quote a value with special characters: \"KEY='a[b]'\""
            if "=" not in override:
                hint = f"settings are KEY=VALUE; a script goes after `--`: automap-launch -- {override}"
            raise ConfigError(f"cannot read `{override}`: {str(error).splitlines()[0]}", hint=hint) from error


def _no_run_folder(error: Exception) -> Exception:
    """What to raise for an error outside of any launch: only making the run folder meets the file system there."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):  # OmegaConf raises its own error from it
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return error
    return ConfigError(
        f"cannot make the run folder {cause.filename}: {cause.strerror}",
        hint="start automap-launch in a folder that you can write to, or name one: hydra.run.dir=FOLDER",
    )


def _check_run_folder(overrides: Sequence[str]) -> None:
    """Raises ConfigError for a run folder of another launch, before Hydra writes its files there."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "hydra.run.dir" and "${" not in value:
            RunFolder(Path(value.strip("'\""))).check_free()


def _settings(arguments: Sequence[str]) -> list[str]:
    """The overrides among Hydra's arguments.

    Raises:
      ConfigError: an option is unknown or lacks its value; Hydra would show all that it knows.
    """
    try:
        known, unknown = option_parser().parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    if unknown:
        raise ConfigError(
            f"unknown option {unknown[0]}",
            hint="settings are KEY=VALUE (`automap-launch --help` lists them); options of the script go after `--`",
        )
    return [str(override) for override in known.overrides]


def _hydra_main(task: Callable[[DictConfig], None]) -> Callable[[], None]:
    decorated: Callable[[], None] = hydra.main(
        version_base="1.3", config_path=str(conf_folder()), config_name="config"
    )(task)
    return decorated


def _launch(composed: DictConfig, terminal: Terminal) -> int:
    """One launch in its run folder; returns its exit code."""
    from automap_launch.workflow import Workflow  # imports torch: too slow for --help and for errors in the config

    folder = RunFolder(Path(HydraConfig.get().runtime.output_dir))
    summary: Path | None = None
    try:
        config = to_config(composed)
        folder.claim()
        summary = folder.summary
        resolved = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(resolved, dict)
        record = {str(key): value for key, value in resolved.items()}
        Workflow(config, folder, terminal, record, _recipe_folders()).run()
    except AutomapError as error:
        terminal.error(error)
        return error.exit_code
    except Interrupted as interrupted:
        terminal.note(f"interrupted by {interrupted.name}")
        return interrupted.exit_code
    except Exception:
        terminal.internal_error(traceback.format_exc())
        return 1
    finally:
        terminal.summary_path(summary)
    return 0


def _recipe_folders() -> list[Path]:
    """Folders `recipe` of the config folders that the user named with --config-dir, where his recipes' scripts lie."""
    sources = HydraConfig.get().runtime.config_sources
    return [Path(s.path) / recipe_group.GROUP for s in sources if s.schema == "file" and s.provider == "command-line"]


def _config_error(error: HydraException) -> ConfigError:
    message = str(error).strip()
    first, _, rest = message.partition("\n")
    if first.startswith("Could not override '"):
        return unknown_key_error(first.split("'")[1])
    # Hydra ends with its search path, which says nothing of what to type instead.
    rest = rest.partition("Config search path:")[0]
    options = [line.strip() for line in rest.splitlines() if line.startswith("\t")]
    near = difflib.get_close_matches(first.rpartition("/")[2].strip("'\"."), options, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    listed = " ".join(" ".join(rest.split()).split())
    return ConfigError(first, hint=f"{guess}{listed}".strip() or None)
