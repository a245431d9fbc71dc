"""What the user reads on the terminal. With `--json`, stdout carries the path of `summary.json` and nothing else."""

from __future__ import annotations

import io
import shutil
import sys
import threading
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console, RenderableType
from rich.markup import escape

from automap_launch.errors import AutomapError

_PIPE_COLUMNS = 120  # a log has no width; tables need some
_TABLE_COLUMNS = 100  # and on a narrower terminal a wrapped line is better than a number cut short


class _Around(io.TextIOBase):
    """A text stream around another; all but `write` is that one's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


class LineStream(_Around):
    """A text stream that knows whether it stands at the beginning of a line. Safe to write to from several threads."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lock = threading.Lock()
        self._at_line_start = True
        self._ours = True  # the latest write; a progress bar of ours continues its own line

    def write(self, text: str) -> int:
        return self._write(text, own_lines=False)

    def write_lines(self, text: str) -> int:
        """Writes `text` on lines of its own, whatever stands on the current one."""
        return self._write(text, own_lines=True)

    def _write(self, text: str, own_lines: bool) -> int:
        with self._lock:
            if own_lines and text and not self._at_line_start and not self._ours:
                self._stream.write("\n")
            self._stream.write(text)
            if text:
                self._ours = own_lines
                self._at_line_start = text.endswith(("\n", "\r"))
        return len(text)


class OwnLines(_Around):
    """Writes to a `LineStream`, always on lines of its own: ours, between those of the script."""

    def __init__(self, stream: LineStream) -> None:
        super().__init__(cast(TextIO, stream))
        self._lines = stream

    def write(self, text: str) -> int:
        return self._lines.write_lines(text)


class Terminal:
    """Our messages, and the streams for the script's output (`stream`) and for progress (`progress`)."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        stream = LineStream(sys.stderr if as_json else sys.stdout)
        self.stream = cast(TextIO, stream)
        self.progress = cast(TextIO, OwnLines(stream))
        columns = shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns if stream.isatty() else _PIPE_COLUMNS
        self.console = Console(file=self.progress, highlight=False, soft_wrap=True, width=max(columns, _TABLE_COLUMNS))
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

    def summary_path(self, path: Path | None) -> None:
        """The only line on stdout with `--json`; none where the launch did not come as far as a summary."""
        if not self.as_json:
            return
        if path is not None and path.exists():
            print(path, flush=True)
        else:
            self.no_summary()

    def no_summary(self) -> None:
        if self.as_json:
            self._errors.print("automap-launch: no summary.json was written: the launch did not begin")
