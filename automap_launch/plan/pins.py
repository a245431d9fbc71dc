"""`Pins`: decisions that the user takes himself (`search.pin`), checked against the program and the cluster."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from automap_launch.cluster.cluster import Cluster
from automap_launch.errors import PlanError
from automap_launch.plan.decision import SCHEDULES, STORAGES, Decision, Schedule, Storage
from automap_launch.plan.sharding import DATA, MODEL, shardable_groups, why_not_cut
from automap_launch.program.program import Program


class Pinned(Protocol):
    """The user's pins as the config group `search` holds them (`search/config.py`, PinConfig)."""

    data: int | None
    model: int | None
    storage: str | None
    stages: int | None
    micro_batches: int | None
    schedule: str | None
    cuts: list[int] | None
    groups: dict[str, str | None] | None


@dataclass(frozen=True)
class Pins:
    """What is fixed; None: free. And what the program and the cluster leave.

    Attributes:
      devices: of the cluster; a plan uses them all.
      blocks: of the program; a pipeline has no more stages. parts: the batch can be cut into this many equal parts, or
        a divisor of it, by data axis and micro-batches together; 1: the step runs as a whole.
      data, model: sizes of the mesh axes of a stage. storage, micro_batches, cuts, schedule: see `Decision`.
      groups: by group id, the axis `model`, or None for a group that stays whole.
    """

    devices: int
    blocks: int = 1
    parts: int = 1
    data: int | None = None
    model: int | None = None
    storage: Storage | None = None
    stages: int | None = None
    micro_batches: int | None = None
    schedule: Schedule | None = None
    cuts: tuple[int, ...] | None = None
    groups: Mapping[int, str | None] = field(default_factory=dict)

    @classmethod
    def resolve(cls, pin: Pinned, program: Program, cluster: Cluster) -> Pins:
        """Checks the config's pins.

        Raises:
          PlanError: no plan can keep to them; the message says why.
        """
        _check_devices(pin, cluster)
        if pin.storage is not None and pin.storage not in STORAGES:
            raise PlanError(f"search.pin.storage={pin.storage} is none of {', '.join(STORAGES)}")
        _check_pipeline(pin, program)
        groups: dict[int, str | None] = {}
        for path, wanted in (pin.groups or {}).items():
            group = _group_of(path, program)
            if wanted not in (None, MODEL):
                raise PlanError(f"search.pin.groups: {path} is pinned to {wanted!r}, expected {MODEL} or null")
            if groups.setdefault(group, wanted) != wanted:
                raise PlanError(f"search.pin.groups: {path} is in group {group}, which another pin puts elsewhere")
        analysis = program.batch_analysis
        whole = why_not_cut(program, stages=1) is not None
        one_stage = whole or why_not_cut(program, stages=2) is not None
        free = cls(
            devices=cluster.devices,
            blocks=1 if one_stage else len(program.blocks),
            parts=1 if whole or analysis is None else analysis.max_micro_batches,
        )
        pins = replace(
            free,
            data=pin.data,
            model=pin.model,
            storage=next((s for s in STORAGES if s == pin.storage), None),
            stages=pin.stages if pin.cuts is None else len(pin.cuts) + 1,
            micro_batches=pin.micro_batches,
            schedule=next((s for s in SCHEDULES if s == pin.schedule), None),
            cuts=None if pin.cuts is None else tuple(pin.cuts),
            groups=groups,
        )
        pins._check_any(program, cluster, pinned=pins != free)
        return pins

    def stage_counts(self) -> tuple[int, ...]:
        """Numbers of stages that the pins allow, ascending."""
        return tuple(
            stages
            for stages in _divisors(self.devices)
            if stages <= max(self.blocks, 1) and self.stages in (None, stages) and self.schedules(stages)
        )

    def schedules(self, stages: int) -> tuple[Schedule, ...]:
        """Schedules of so many stages that the pins allow."""
        every = SCHEDULES[:1] if stages == 1 else SCHEDULES[1:]
        return tuple(s for s in every if self.schedule in (None, s))

    def meshes(self, stages: int = 1) -> tuple[tuple[int, int], ...]:
        """(data, model) of the devices of one of `stages` stages that the pinned axes allow."""
        own = self.devices // stages
        every = ((own // m, m) for m in _divisors(own))
        return tuple((d, m) for d, m in every if self.data in (None, d) and self.model in (None, m))

    def micro_batch_counts(self, stages: int = 1, data: int = 1) -> tuple[int, ...]:
        """Numbers of micro-batches that the pins allow, ascending, for stages whose data axis has `data` devices."""
        counts = _divisors(self.parts // data) if self.parts % data == 0 else []
        if stages == 1 and 1 not in counts:
            counts = [1]  # as a whole, the partitioner may cut the batch where micro-batches could not
        return tuple(count for count in counts if self.micro_batches in (None, count))

    def allows(self, decision: Decision) -> bool:
        """Whether a decision keeps to the pins and uses all devices: where nothing is on the axis `model`, its
        devices would all compute the same."""
        return (
            decision.stages in self.stage_counts()
            and self.cuts in (None, decision.cuts)
            and decision.schedule in self.schedules(decision.stages)
            and decision.micro_batches in self.micro_batch_counts(decision.stages, decision.data)
            and (decision.data, decision.model) in self.meshes(decision.stages)
            and (decision.model == 1 or bool(decision.sharded))
            and self.storage in (None, decision.storage)
            and all((axis is not None) == (group in decision.sharded) for group, axis in self.groups.items())
        )

    def _check_any(self, program: Program, cluster: Cluster, *, pinned: bool) -> None:
        """Raises PlanError when no mesh of any number of stages is possible."""
        reasons: dict[str, str] = {}
        for stages in self.stage_counts():
            for mesh in self.meshes(stages):
                why = self._why_not(stages, mesh, program)
                if why is None:
                    return
                prefix = f"stages={stages} " if stages > 1 else ""
                reasons[f"{prefix}data={mesh[0]} model={mesh[1]}"] = why
        why = "; ".join(f"{mesh}: {reason}" for mesh, reason in reasons.items())
        if not reasons:
            counts, product = " or ".join(map(str, self.stage_counts())), (self.data or 1) * (self.model or 1)
            raise PlanError(
                f"search.pin.data={self.data} and search.pin.model={self.model} make {product} "
                f"devices, and {cluster.describe()} has {self.devices} for {counts} stage{'s'[: counts != '1']}",
                hint="pin one of them: the other follows; on this machine, cluster.devices=N sets how many are used",
            )
        if pinned:
            raise PlanError(f"no plan keeps to search.pin: {why}")
        raise PlanError(
            f"no plan uses all {self.devices} devices of {cluster.describe()}: {why}",
            hint="choose a batch size that the number of devices divides, or another number of devices "
            "(on this machine, cluster.devices=N sets how many are used)",
        )

    def _why_not(self, stages: int, mesh: tuple[int, int], program: Program) -> str | None:
        data, model = mesh
        if data > 1 and program.batch is None:
            return "the step has no batch to shard"
        if program.batch is not None and program.groups[program.batch].divisor % data:
            return f"the batch ({_sizes(program, program.batch)}) does not divide by {data}"
        if not self.micro_batch_counts(stages, data):
            wanted = self.micro_batches or 1
            return (
                f"the batch can be cut into {self.parts} equal parts or a divisor of that, not into {data * wanted} "
                "(data x micro-batches)"
            )
        for group, axis in self.groups.items():
            if axis == MODEL and model == 1:
                return f"group {group} is pinned to the axis {MODEL}, which has one device"
            if axis == MODEL and program.groups[group].divisor % model:
                return f"group {group} ({_sizes(program, group)}) does not divide by {model}"
        free = shardable_groups(program) - {group for group, axis in self.groups.items() if axis is None}
        if model > 1 and not any(program.groups[group].divisor % model == 0 for group in free):
            return f"no group is there for {MODEL}: none that is free has sizes that {model} divides"
        return None


def _check_devices(pin: Pinned, cluster: Cluster) -> None:
    """Raises PlanError when pinned sizes do not multiply to the devices of the cluster."""
    devices = cluster.devices
    sizes = {DATA: pin.data, MODEL: pin.model, "stages": pin.stages}
    if pin.cuts is not None and pin.stages is None:
        sizes["stages"] = len(pin.cuts) + 1
    given = {name: size for name, size in sizes.items() if size is not None}
    for name, size in given.items():
        if size < 1 or devices % size:
            asked = f"search.pin.{name}={size}" if getattr(pin, name) is not None else f"search.pin.cuts={pin.cuts}"
            what = f", {size} stages," if name == "stages" and pin.stages is None else ""
            raise PlanError(
                f"{asked}{what} is impossible: {cluster.describe()} has {devices} devices, "
                f"which {size} does not divide",
                hint=f"choose one of {', '.join(map(str, _divisors(devices)))}",
            )
    product = math.prod(given.values())
    if devices % product or (len(given) == len(sizes) and product != devices):
        raise PlanError(
            f"{_joined([f'search.pin.{name}={size}' for name, size in given.items()])} make {product} devices, "
            f"and {cluster.describe()} has {devices}",
            hint="leave one of them free: it follows from the others; on this machine, cluster.devices=N sets how many "
            "are used",
        )


def _check_pipeline(pin: Pinned, program: Program) -> None:
    """Raises PlanError when pinned stages, micro-batches, schedule or cuts are impossible for the step or together."""
    if pin.schedule is not None and pin.schedule not in SCHEDULES:
        raise PlanError(f"search.pin.schedule={pin.schedule} is none of {', '.join(SCHEDULES)}")
    stages = pin.stages if pin.cuts is None else len(pin.cuts) + 1
    if pin.cuts is not None:
        if pin.stages not in (None, stages):
            raise PlanError(f"search.pin.cuts={pin.cuts} makes {stages} stages, and search.pin.stages={pin.stages}")
        if any(b <= a for a, b in pairwise([0, *pin.cuts])) or (pin.cuts and pin.cuts[-1] >= len(program.blocks)):
            raise PlanError(
                f"search.pin.cuts={pin.cuts} is impossible: it lists the first blocks of the later stages, ascending, "
                f"of the blocks 1 to {len(program.blocks) - 1}"
                if len(program.blocks) > 1
                else f"search.pin.cuts={pin.cuts} is impossible: the step has one block, which no cut divides",
                hint="mode=plan shows the blocks",
            )
    if pin.micro_batches is not None and pin.micro_batches < 1:
        raise PlanError(f"search.pin.micro_batches={pin.micro_batches} is impossible: it is at least 1")
    if stages is not None and stages > 1:
        asked = f"search.pin.stages={stages}" if pin.cuts is None else f"search.pin.cuts={pin.cuts}"
        if pin.schedule == "none":
            raise PlanError(f"{asked} and search.pin.schedule=none: a pipeline has one of {', '.join(SCHEDULES[1:])}")
        why = why_not_cut(program, stages)
        if why is not None:
            raise PlanError(
                f"{asked} is impossible: {why}",
                hint="search.max_blocks=N allows for more blocks" if stages > len(program.blocks) > 0 else None,
            )
    if stages == 1 and pin.schedule not in (None, "none"):
        raise PlanError(f"search.pin.stages=1 and search.pin.schedule={pin.schedule}: one stage has the schedule none")
    if pin.schedule not in (None, "none"):
        why = why_not_cut(program, 2)
        if why is not None:
            raise PlanError(f"search.pin.schedule={pin.schedule} is impossible: {why}")
    if pin.micro_batches is not None and pin.micro_batches > 1:
        why = why_not_cut(program, stages or 1, pin.micro_batches * (pin.data or 1))
        if why is not None:
            most = program.batch_analysis.max_micro_batches if program.batch_analysis else 1
            over = f" and search.pin.data={pin.data}" if pin.data else ""
            raise PlanError(
                f"search.pin.micro_batches={pin.micro_batches}{over} is impossible: {why}",
                hint=f"choose one of {', '.join(map(str, _divisors(most)))} (data x micro-batches)",
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


def _joined(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
