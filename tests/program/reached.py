"""Which statements of rules are reached while something runs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
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

    def missed_endings(self) -> dict[Place, str]:
        """The `return` and `raise` statements that were not reached, by place, with their text."""
        return self._missed(ast.Return | ast.Raise)

    def missed(self) -> dict[Place, str]:
        """All statements that were not reached, as `missed_endings`."""
        return self._missed(ast.stmt)

    def _missed(self, kinds: Any) -> dict[Place, str]:
        """Functions that define functions (what registers rules) do not count."""
        found: dict[Place, str] = {}
        for path in self._files.values():
            text = path.read_text()
            functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
            skipped = {id(node) for function in functions if _defines(function) for node in ast.walk(function)}
            for function in functions:
                for node in _statements(function):
                    place = (path.name, node.lineno)
                    if isinstance(node, kinds) and id(node) not in skipped and place not in self.lines:
                        found[place] = text.splitlines()[node.lineno - 1].strip()
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


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Of a function's body, its docstring left out."""
    for node in ast.walk(function):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and node is not function and not is_text:
            yield node


def _defines(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.FunctionDef) for node in function.body)
