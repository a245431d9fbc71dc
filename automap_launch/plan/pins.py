"""`Pins`: decisions that the user takes himself (`search.pin`), checked against the program and the cluster."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from automap_launch.cluster.cluster import Cluster
from automap_launch.errors import PlanError
from automap_launch.plan.decision import STORAGES, Decision, Storage
from automap_launch.plan.sharding import DATA, MODEL, shardable_groups
from automap_launch.program.program import Program

AVAILABLE = "search.pin.data, .model, .storage and .groups can be pinned"


class Pinned(Protocol):
    """The user's pins as the config group `search` holds them (`search/config.py`, PinConfig)."""

    data: int | None
    model: int | None
    storage: str | None
    stages: int | None
    micro_batches: int | None
    schedule: str | None
    groups: dict[str, str | None] | None


@dataclass(frozen=True)
class Pins:
    """What is fixed; None: free.

    Attributes:
      devices: of the cluster; a plan uses them all.
      data, model: sizes of the mesh axes. storage: see `Decision`.
      groups: by group id, the axis `model`, or None for a group that stays whole.
    """

    devices: int
    data: int | None = None
    model: int | None = None
    storage: Storage | None = None
    groups: Mapping[int, str | None] = field(default_factory=dict)

    @classmethod
    def resolve(cls, pin: Pinned, program: Program, cluster: Cluster) -> Pins:
        """Checks the config's pins.

        Raises:
          PlanError: no plan can keep to them, or they ask for what this version does not do; the message says why.
        """
        _refuse_pipelines(pin)
        devices = cluster.devices
        for axis, size in ((DATA, pin.data), (MODEL, pin.model)):
            if size is not None and (size < 1 or devices % size):
                raise PlanError(
                    f"search.pin.{axis}={size} is impossible: {cluster.describe()} has {devices} devices, which "
                    f"{size} does not divide",
                    hint=f"choose one of {', '.join(map(str, _divisors(devices)))}",
                )
        if pin.data is not None and pin.model is not None and pin.data * pin.model != devices:
            raise PlanError(
                f"search.pin.data={pin.data} and search.pin.model={pin.model} make {pin.data * pin.model} devices, "
                f"and {cluster.describe()} has {devices}",
                hint="pin one of them: the other follows; on this machine, cluster.devices=N sets how many are used",
            )
        if pin.storage is not None and pin.storage not in STORAGES:
            raise PlanError(f"search.pin.storage={pin.storage} is none of {', '.join(STORAGES)}")
        groups: dict[int, str | None] = {}
        for path, wanted in (pin.groups or {}).items():
            group = _group_of(path, program)
            if wanted not in (None, MODEL):
                raise PlanError(f"search.pin.groups: {path} is pinned to {wanted!r}, expected {MODEL} or null")
            if groups.setdefault(group, wanted) != wanted:
                raise PlanError(f"search.pin.groups: {path} is in group {group}, which another pin puts elsewhere")
        storage: Storage | None = next((s for s in STORAGES if s == pin.storage), None)
        pins = cls(devices, pin.data, pin.model, storage, groups)
        reasons = {mesh: pins._why_not(mesh, program) for mesh in pins.meshes()}
        if all(reasons.values()):
            why = "; ".join(f"data={d} model={m}: {reason}" for (d, m), reason in reasons.items())
            if pins == cls(devices):
                raise PlanError(
                    f"no plan uses all {devices} devices of {cluster.describe()}: {why}",
                    hint="choose a batch size that the number of devices divides, or another number of devices "
                    "(on this machine, cluster.devices=N sets how many are used)",
                )
            raise PlanError(f"no plan keeps to search.pin: {why}")
        return pins

    def meshes(self) -> tuple[tuple[int, int], ...]:
        """(data, model) of all devices that the pinned axes allow."""
        every = ((self.devices // m, m) for m in _divisors(self.devices))
        return tuple((d, m) for d, m in every if self.data in (None, d) and self.model in (None, m))

    def allows(self, decision: Decision) -> bool:
        """Whether a decision keeps to the pins and uses all devices: where nothing is on the axis `model`, its
        devices would all compute the same."""
        return (
            (decision.data, decision.model) in self.meshes()
            and (decision.model == 1 or bool(decision.sharded))
            and self.storage in (None, decision.storage)
            and all((axis is not None) == (group in decision.sharded) for group, axis in self.groups.items())
        )

    def _why_not(self, mesh: tuple[int, int], program: Program) -> str | None:
        data, model = mesh
        if data > 1 and program.batch is None:
            return "the step has no batch to shard"
        if program.batch is not None and program.groups[program.batch].divisor % data:
            return f"the batch ({_sizes(program, program.batch)}) does not divide by {data}"
        for group, axis in self.groups.items():
            if axis == MODEL and model == 1:
                return f"group {group} is pinned to the axis {MODEL}, which has one device"
            if axis == MODEL and program.groups[group].divisor % model:
                return f"group {group} ({_sizes(program, group)}) does not divide by {model}"
        free = shardable_groups(program) - {group for group, axis in self.groups.items() if axis is None}
        if model > 1 and not any(program.groups[group].divisor % model == 0 for group in free):
            return f"no group is there for {MODEL}: none that is free has sizes that {model} divides"
        return None


def _refuse_pipelines(pin: Pinned) -> None:
    asked = []
    if pin.stages not in (None, 1):
        asked.append(f"search.pin.stages={pin.stages}")
    if pin.micro_batches not in (None, 1):
        asked.append(f"search.pin.micro_batches={pin.micro_batches}")
    if pin.schedule not in (None, "none"):
        asked.append(f"search.pin.schedule={pin.schedule}")
    if asked:
        raise PlanError(
            f"{', '.join(asked)}: this version cannot run pipeline plans or micro-batches yet", hint=AVAILABLE
        )


def _group_of(name: str, program: Program) -> int:
    """The group that `PATH` or `PATH@DIM` means; PATH is a parameter's."""
    path, _, dim_text = name.partition("@")
    arguments = program.step.arguments
    paths = {arguments[i].path: program.arguments[i] for i in program.parameters}
    if path not in paths:
        near = difflib.get_close_matches(path, paths, n=3, cutoff=0.3)
        raise PlanError(f"search.pin.groups: the step has no parameter {path}", hint=f"near it: {', '.join(near)}")
    groups = program.dim_groups[paths[path]]
    dims = {d: g for d, g in enumerate(groups) if g is not None and g != program.batch}
    if dim_text:
        if not dim_text.isdigit() or int(dim_text) not in dims:
            raise PlanError(
                f"search.pin.groups: {path} has no dim {dim_text} that can be sharded",
                hint=f"its dims: {', '.join(f'{path}@{d}' for d in dims) or 'none'}",
            )
        return dims[int(dim_text)]
    if len(set(dims.values())) != 1:
        choices = ", ".join(f"{path}@{d} (group {g}, {_sizes(program, g)})" for d, g in dims.items())
        raise PlanError(
            f"search.pin.groups: {path} has dims in {len(set(dims.values()))} groups: name the dim",
            hint=f"one of {choices}" if choices else f"no dim of {path} can be sharded",
        )
    return next(iter(dims.values()))


def _sizes(program: Program, group: int) -> str:
    return f"sizes {', '.join(map(str, program.groups[group].sizes))}"


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
