"""`Backend`: one place that measurements go to. `Tracking` feeds every backend the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Metrics = Mapping[str, float | int | None]


class Backend:
    """Base of all backends. Does nothing: a backend overrides what it has a use for.

    A call may raise anything. `Tracking` then says so once and goes on without that backend.
    """

    name = "none"

    def metrics(self, values: Metrics) -> None:
        """Values measured together, by the keys of docs/contract.md (`train/step`, `search/episode` ...)."""

    def search(self, record: Mapping[str, Any]) -> None:
        """One record of the search in full: what `metrics` gets of it, and the plan that was found."""

    def artifact(self, path: Path, kind: str) -> None:
        """A file of the run folder worth keeping with the run: kind `plan`, `hlo` or `report`."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """The outcome, one value a key."""

    def close(self, exit_code: int) -> None:
        """The launch is over. No call follows."""
