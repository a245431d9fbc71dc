"""Which statements that end a case of a rule (a `return`, a `raise`) are reached while rules run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

Place = tuple[str, int]  # file name, line


class Reached:
    """Watches functions of the Python files in a folder.

    Attributes:
      lines: those that ran while watched functions did.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {str(path): path for path in sorted(folder.glob("*.py"))}
        self.lines: set[Place] = set()

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, what runs in it noted."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                return function(*args, **kwargs)
            finally:
                sys.settrace(before)

        return run

    def missed(self) -> dict[Place, str]:
        """The `return` and `raise` statements that were not reached, by place, with their text. Functions inside of
        functions (what registers rules) do not count, nor what returns them."""
        found: dict[Place, str] = {}
        for path in self._files.values():
            text = path.read_text()
            nodes = list(ast.walk(ast.parse(text)))
            registering = [n for n in nodes if isinstance(n, ast.FunctionDef) and _defines(n)]
            skipped = {id(node) for function in registering for node in ast.walk(function)}
            for node in nodes:
                ends = isinstance(node, ast.Return | ast.Raise) and id(node) not in skipped
                if ends and (path.name, node.lineno) not in self.lines:
                    found[path.name, node.lineno] = text.splitlines()[node.lineno - 1].strip()
        return found

    def _trace(self, frame: FrameType, _: str, __: Any) -> Any:
        path = self._files.get(frame.f_code.co_filename)
        if path is None:
            return None
        name = path.name

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                self.lines.add((name, frame.f_lineno))
            return line

        return line


def _defines(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.FunctionDef) for node in function.body)
