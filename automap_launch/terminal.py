"""What the user reads on the terminal. With `--json`, stdout carries the path of `summary.json` and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console, RenderableType
from rich.markup import escape

from automap_launch.errors import AutomapError

_PIPE_COLUMNS = 120  # a log has no width; tables need some


class Terminal:
    """Our messages, and the stream that rank 0's output is passed on to."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.stream: TextIO = sys.stderr if as_json else sys.stdout
        width = None if self.stream.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
        self.console = Console(file=self.stream, highlight=False, soft_wrap=True, width=width)
        self._errors = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """One line about what is going on."""
        self.console.print(f"[bold cyan]automap-launch[/] {escape(text)}")

    def show(self, renderable: RenderableType) -> None:
        self.console.print(renderable)

    def error(self, error: AutomapError) -> None:
        """What went wrong and how to mend it, unless it has been shown."""
        if error.reported:
            return
        where = f"{error.file}:{error.line}: " if error.file else ""
        self._errors.print(f"[bold red]automap-launch: error:[/] {escape(where + error.message)}")
        if error.hint:
            self._errors.print(escape(error.hint))

    def internal_error(self, traceback_text: str) -> None:
        self._errors.print(escape(traceback_text))
        self._errors.print("[bold red]automap-launch: internal error[/]: this is a defect of automap-launch")

    def summary_path(self, path: Path) -> None:
        if self.as_json and path.exists():
            print(path, flush=True)
