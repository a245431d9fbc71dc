"""The user's own line behind each operation of a graph."""

from __future__ import annotations

from typing import Any

from automap_launch.frontends.source_lines import is_users
from automap_launch.frontends.tensorflow import tf_internals
from automap_launch.train_step import SourceLine


class GraphLines:
    """Looks up operations by name, in a graph and in the functions, branches and loops inside it."""

    def __init__(self, graph: Any) -> None:
        self._operations: dict[str, Any] = {}
        for inner in tf_internals.graphs(graph):
            for operation in inner.get_operations():
                self._operations.setdefault(operation.name, operation)
        self._lines: dict[str, SourceLine | None] = {}

    def operation(self, name: str) -> Any:
        """The operation called `name`, or the one whose name ends it: XLA puts callers' names before."""
        while name:
            if name in self._operations:
                return self._operations[name]
            name = name.partition("/")[2]
        return None

    def of(self, name: str) -> SourceLine | None:
        """Innermost line of the user's own at which the operation was made; None where none is known."""
        if name not in self._lines:
            operation = self.operation(name)
            self._lines[name] = None if operation is None else line_of(operation)
        return self._lines[name]

    def all(self) -> list[Any]:
        return list(self._operations.values())


def line_of(operation: Any) -> SourceLine | None:
    """Innermost line of the user's own at which a graph's operation was made."""
    for file, line in reversed(tf_internals.frames(operation)):
        if is_users(file):
            return SourceLine(file, line)
    return None
