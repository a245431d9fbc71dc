"""The plans of earlier launches, by all that they depend on: a launch that is the same in that starts at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automap_launch.errors import AutomapError
from automap_launch.plan.build import versions
from automap_launch.plan.cost import CostModel
from automap_launch.plan.file import check_plan
from automap_launch.plan.plan import Plan
from automap_launch.records import RecordError, read_record
from automap_launch.resources import cache_folder
from automap_launch.search.config import SearchConfig

# Changes whenever an entry, or what it depends on, does: older ones no longer count.
_METHOD = 1
# What only says how entries are used, or how long one may wait for them.
_NOT_IN_KEY = ("cache", "verify_timeout")
_SAME = 1e-6


@dataclass(frozen=True)
class Outcome:
    """What a search came to.

    Attributes:
      plans: by name, the favourite first: those that go to the devices.
      search: the section `search` of `summary.json`.
      notes: what the user is told of it.
      made: when, for the user.
    """

    plans: dict[str, Plan]
    search: dict[str, Any]
    notes: tuple[str, ...]
    made: str


class UnusableEntryError(Exception):
    """An entry is damaged or stale; the message says why."""


def entry_file(model: CostModel, config: SearchConfig) -> Path:
    """Where the outcome of this search is kept."""
    step, cluster = model.program.step, model.cluster
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NOT_IN_KEY}
    key = {
        "method": _METHOD,
        "fingerprint": step.fingerprint,
        # Plans and pins name parameters; the fingerprint is of the computation alone.
        "arguments": [(a.path, a.role) for a in step.arguments],
        "cluster": [cluster.name, cluster.platform, cluster.digest],
        "settings": settings,
        "versions": versions(),
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return cache_folder() / "plans" / f"{digest}.json"


def keep(outcome: Outcome, path: Path) -> None:
    """Writes an entry, all of it or nothing.

    Raises:
      OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(dataclasses.asdict(outcome)))
    part.replace(path)


def load(path: Path, model: CostModel, config: SearchConfig) -> Outcome | None:
    """The outcome that is kept there, its plans checked against the step, the cluster and the cost model; None: none.

    Raises:
      UnusableEntryError: there is an entry, and it is damaged, or no longer what the cost model says.
    """
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnusableEntryError(f"cannot read {path}: {error}") from error
    try:
        kept = read_record(Outcome, record)
        for plan in kept.plans.values():
            checked = check_plan(plan, model.program, model.cluster, config.memory_fraction)
            now, then = checked.predicted.step_seconds, plan.predicted.step_seconds
            if not math.isclose(now, then, rel_tol=_SAME):
                raise UnusableEntryError(f"{path} is stale: its plan took {then:.4g} s a step, and now {now:.4g} s")
    except (RecordError, AutomapError) as error:
        raise UnusableEntryError(f"{path} is damaged or stale: {error}") from error
    if not kept.plans:
        raise UnusableEntryError(f"{path} holds no plan")
    return kept
