"""`RunFolder`: one object that owns every file name of a run (docs/contract.md, "Run folder")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The files of one launch, below `root`."""

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.yaml"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def search_log(self) -> Path:
        return self.root / "search.jsonl"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def train_step(self) -> Path:
        return self.root / "train_step"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.yaml"

    @property
    def layout(self) -> Path:
        return self.root / "layout.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def capture_log(self) -> Path:
        return self.logs / "capture.log"

    def rank_log(self, rank: int, attempt: int = 0) -> Path:
        suffix = f".attempt_{attempt}" if attempt else ""
        return self.logs / f"rank_{rank}{suffix}.log"

    def rank_files(self, rank: int) -> Path:
        """Where files that rank `rank` > 0 writes end up: side effects of the script happen once, on rank 0."""
        return self.logs / f"rank_{rank}.files"

    def environment(self, rank: int) -> Path:
        return self.root / "environment" / f"rank_{rank}.json"

    def relative(self, path: Path) -> str:
        """`path` as `summary.json` names it: relative to the run folder."""
        return str(path.relative_to(self.root))
