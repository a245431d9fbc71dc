"""`RunFolder`: one object that owns every file name of a run (docs/contract.md, "Run folder")."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from automap_launch.errors import ConfigError

# The plan of a launch, by name, among those that are tried against it.
FAVOURITE = "plan"


def new_run_folder(parent: str) -> str:
    """Makes `parent/DATE/TIME` and returns it; a suffix keeps launches of the same second apart.

    `mkdir` of an existing folder fails on every file system, shared ones included, so no two launches get the same
    folder, on one host or on several.
    """
    now = datetime.now()
    day = Path(parent) / now.strftime("%Y-%m-%d")
    day.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count(1):
        folder = day / (now.strftime("%H-%M-%S") + (f"_{attempt}" if attempt > 1 else ""))
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return str(folder)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class RunFolder:
    """The files of one launch, below `root`."""

    root: Path

    def claim(self) -> None:
        """Makes the folder this launch's own; of several launches at a time, one succeeds.

        Raises:
          ConfigError: it is another launch's.
        """
        try:
            self.logs.mkdir(parents=True)
        except FileExistsError:
            raise self._taken() from None

    def check_free(self) -> None:
        """Raises ConfigError when the folder is another launch's."""
        if self.logs.exists():
            raise self._taken()

    def _taken(self) -> ConfigError:
        return ConfigError(
            f"the run folder {self.root} is that of another launch, and two launches never share one",
            hint="name another hydra.run.dir, or leave it out: each launch then gets a folder of its own",
        )

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

    def plan_of(self, name: str) -> Path:
        """The launch's own plan, or another one that is tried against it; the folder is made."""
        return self.plan if name == FAVOURITE else self._in_trial(f"{name}.yaml")

    def layout_of(self, name: str) -> Path:
        """The layout of that plan; the folder is made."""
        return self.layout if name == FAVOURITE else self._in_trial(f"{name}.layout.json")

    def _in_trial(self, file: str) -> Path:
        folder = self.root / "trial"
        folder.mkdir(exist_ok=True)
        return folder / file

    @property
    def launch_spec(self) -> Path:
        return self.root / "launch.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def capture_log(self) -> Path:
        return self.logs / "capture.log"

    def rank_log(self, rank: int, attempt: int = 0) -> Path:
        suffix = f".attempt_{attempt}" if attempt else ""
        return self.logs / f"rank_{rank}{suffix}.log"

    def rank_failure(self, rank: int, attempt: int = 0) -> Path:
        """The last words of a failing worker (`launcher/failure.py`)."""
        suffix = f".attempt_{attempt}" if attempt else ""
        return self.logs / f"rank_{rank}{suffix}.failure.json"

    def rank_files(self, rank: int) -> Path:
        """Where files that rank `rank` > 0 writes end up: side effects of the script happen once, on rank 0."""
        return self.logs / f"rank_{rank}.files"

    def environment(self, rank: int) -> Path:
        return self.root / "environment" / f"rank_{rank}.json"

    def relative(self, path: Path) -> str:
        """`path` as `summary.json` names it: relative to the run folder."""
        return str(path.relative_to(self.root))
