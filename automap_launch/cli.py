"""The console script `automap-launch`: argument vector, Hydra, exit codes. What a launch does is in `workflow.py`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from automap_launch import command_line, recipe_group
from automap_launch.config import to_config, unknown_key_error
from automap_launch.errors import AutomapError, ConfigError
from automap_launch.interruption import Interrupted
from automap_launch.resources import conf_folder
from automap_launch.run_folder import RunFolder, new_run_folder
from automap_launch.terminal import Terminal


def main() -> None:
    """Entry point of the console script; `python -m automap_launch` is the same. Leaves through `sys.exit`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    terminal = Terminal(as_json="--json" in arguments)
    try:
        line = command_line.split(arguments)
        return _compose_and_launch(line.overrides, terminal)
    except AutomapError as error:
        terminal.error(error)
        return error.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except KeyboardInterrupt:
        return 130


def _compose_and_launch(overrides: Sequence[str], terminal: Terminal) -> int:
    _check_overrides(overrides)
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
    finally:
        os.environ.pop("HYDRA_FULL_ERROR", None)
    return next((code for code in exit_codes if code), 0)


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override that Hydra cannot read: it would not say which one it is."""
    parser = OverridesParser.create()
    for override in overrides:
        if override.startswith("-"):
            return  # flags of Hydra may have a value, `--config-dir DIR`: it parses what is left itself
        try:
            parser.parse_override(override)
        except HydraException as error:
            raise ConfigError(
                f"cannot read `{override}`: {str(error).splitlines()[0]}",
                hint="settings are KEY=VALUE; quote a value with special characters: \"KEY='a[b]'\"",
            ) from error


def _hydra_main(task: Callable[[DictConfig], None]) -> Callable[[], None]:
    decorated: Callable[[], None] = hydra.main(
        version_base="1.3", config_path=str(conf_folder()), config_name="config"
    )(task)
    return decorated


def _launch(composed: DictConfig, terminal: Terminal) -> int:
    """One launch in its run folder; returns its exit code."""
    from automap_launch.workflow import Workflow  # imports torch: too slow for --help and for errors in the config

    folder = RunFolder(Path(HydraConfig.get().runtime.output_dir))
    try:
        config = to_config(composed)
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
        terminal.summary_path(folder.summary)
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
    return ConfigError(first, hint=rest.strip() or None)
