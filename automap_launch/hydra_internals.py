"""What the command line takes from Hydra's private modules: its parser of options, which public Hydra does not give."""

from __future__ import annotations

import argparse

import hydra

from automap_launch.tested_versions import require_tested

require_tested("hydra-core", hydra.__version__)

from hydra._internal.utils import get_args_parser  # noqa: E402


def option_parser() -> argparse.ArgumentParser:
    """Hydra's own; it raises `argparse.ArgumentError` where Hydra itself would show its usage and exit."""
    parser: argparse.ArgumentParser = get_args_parser()
    parser.exit_on_error = False
    return parser
