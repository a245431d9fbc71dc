"""`plan.yaml`: written so that a person can read and edit it, and checked when it is read."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import yaml

from automap_launch.cluster.cluster import Cluster
from automap_launch.errors import ClusterMismatchError, NoPlanFitsError, PlanError
from automap_launch.plan.build import build_plan, decision_of
from automap_launch.plan.cost import CostModel
from automap_launch.plan.plan import SCHEMA, Plan
from automap_launch.program.program import Program
from automap_launch.records import RecordError, read_record
from automap_launch.units import format_bytes

_HEADER = """\
# A parallel plan for one training step on one cluster. Run it: automap-launch mode=run plan=THIS_FILE -- train.py
# You may edit `mesh` (and that of all `stages`, which is the same), a group's `axis` (model, data for the batch, or
# null), the `blocks` of stages, `micro_batches` and `schedule`: the plan is checked and costed anew when it is loaded.
# Every field is described in docs/contract.md.
"""

_ORDER = (
    "schema",
    "fingerprint",
    "cluster",
    "mesh",
    "groups",
    "storage",
    "stages",
    "micro_batches",
    "schedule",
    "allow_local_batch_stats",
    "predicted",
    "origin",
    "versions",
)


class _Dumper(yaml.SafeDumper):
    """Block style, with lists of numbers on one line and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _Dumper, items: list[Any]) -> yaml.Node:
    flow = all(isinstance(item, (int, float)) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


_Dumper.add_representer(list, _represent_list)


def save_plan(plan: Plan, path: Path) -> None:
    """Writes `plan.yaml`, all of it or nothing: a reader never sees half a plan."""
    record = _plain(dataclasses.asdict(plan))
    text = yaml.dump(
        {key: record[key] for key in _ORDER}, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(_HEADER + text)
    part.replace(path)


def load_plan(path: Path) -> Plan:
    """Reads a plan file.

    Raises:
      PlanError: there is no such file, it is no YAML, or a field is unknown, missing or not what it must be; the
        message names the key.
    """
    try:
        record = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlanError(f"the plan {path} is no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(record, dict):
        raise PlanError(f"the plan {path} holds no fields: expected {', '.join(_ORDER)}")
    if record.get("schema", SCHEMA) != SCHEMA:
        raise PlanError(f"the plan {path} has schema {record['schema']!r}, this version reads {SCHEMA}")
    try:
        return read_record(Plan, record)
    except RecordError as error:
        raise PlanError(f"the plan {path}: {error}", hint="docs/contract.md describes every field") from error


def check_plan(plan: Plan, program: Program, cluster: Cluster, memory_fraction: float = 0.9) -> Plan:
    """The plan, known to be one of this program for this cluster, with a prediction of its own.

    An edited plan keeps its origin; what it had as its prediction is replaced.

    Raises:
      ClusterMismatchError: it is for another cluster.
      PlanError: it is for another step, or cannot be carried out.
      NoPlanFitsError: it needs more memory than a device has.
    """
    devices = len(plan.stages) * math.prod(plan.mesh.values())
    if plan.cluster.name != cluster.name or devices != cluster.devices:
        raise ClusterMismatchError(
            f"the plan is for {plan.cluster.name} and {devices} devices ({_mesh(plan)}); "
            f"this is {cluster.describe()}, {cluster.devices} devices",
            hint="search anew for this cluster, or choose the plan's with cluster=NAME",
        )
    if plan.fingerprint != program.step.fingerprint:
        raise PlanError(
            f"the plan is for another train step: its fingerprint is {plan.fingerprint}, the script's is "
            f"{program.step.fingerprint}{_step_difference(plan, program)}",
            hint="run the script with the arguments that it was planned with, or search anew",
        )
    decision = decision_of(plan, program)
    model = CostModel(program, cluster, memory_fraction)
    checked = build_plan(decision, model, plan.origin)
    needed = checked.predicted.memory_bytes_per_device.total
    if needed > model.memory_limit:
        raise NoPlanFitsError(
            f"the plan needs {format_bytes(needed)} a device, and may use {format_bytes(model.memory_limit)} "
            f"({memory_fraction:g} of the memory of {cluster.device.name})",
            hint="search.memory_fraction sets the share that a plan may use",
        )
    return checked


def _mesh(plan: Plan) -> str:
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    return mesh if len(plan.stages) == 1 else f"{len(plan.stages)} stages of {mesh}"


def _step_difference(plan: Plan, program: Program) -> str:
    """What a reader can see of the difference between two steps: their parameters."""
    planned = {path for group in plan.groups for path in group.members}
    found = {path for group in program.groups for path in group.members}
    parts = []
    for what, paths in (("only in the plan", planned - found), ("only in the script", found - planned)):
        if paths:
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            parts.append(f"parameters {what}: {', '.join(sorted(paths)[:3])}{more}")
    return "; " + "; ".join(parts) if parts else "; their parameters have the same names, their computation differs"


def _plain(value: Any) -> Any:
    """Tuples as lists: YAML's plain types."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
