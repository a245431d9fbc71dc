"""The space of single-stage plans as a sequence of small decisions: mesh, storage, then one a linkage group.

A state is a `Partial` plan. `PlanSpace.choices` lists what can be decided next, invalid ones marked; a decision that
leaves one way only is taken by itself, so every episode consists of real choices. The space is canonical: two paths
through it never end in the same plan (with one device on `model` no group is asked, with one on `data` no storage).
A mesh whose axis `model` shards nothing is left out: its devices would all compute the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from automap_launch.cluster.cluster import Cluster
from automap_launch.plan.decision import STORAGES, Decision, Storage
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Memory
from automap_launch.plan.sharding import shardable_groups
from automap_launch.program.program import Group, Program

Kind = Literal["mesh", "storage", "group"]
Mesh = tuple[int, int]


class Estimate(Protocol):
    """What the search reads of a plan's predicted cost. Seconds, and bytes a device."""

    @property
    def step_seconds(self) -> float: ...
    @property
    def compute(self) -> float: ...
    @property
    def communication(self) -> float: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def fits(self) -> bool: ...


class CostModel(Protocol):
    """Predicts the cost of decisions (`plan/cost.py`). `memory_limit`: bytes that a plan may use on a device."""

    @property
    def program(self) -> Program: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def memory_limit(self) -> float: ...
    def estimate_many(self, decisions: Sequence[Decision]) -> Sequence[Estimate]: ...


@dataclass(frozen=True)
class Partial:
    """A plan of which `mesh` = (data, model), `storage` and the first groups are decided; None: not yet."""

    mesh: Mesh | None = None
    storage: Storage | None = None
    groups: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One way to take the next decision.

    Attributes:
      kind: of the decision. group: its group, when it is about one.
      result: the partial plan after it (and after what it forces).
      valid: False where divisibility or a pin rules it out.
    """

    kind: Kind
    result: Partial
    valid: bool = True
    group: Group | None = None


class PlanSpace:
    """All single-stage plans of `program` on `devices` devices.

    Args:
      meshes: allowed (data, model) factorisations of `devices`.
      storages: allowed values of `Decision.storage`.
      forced: by group id, whether the group must be sharded (True) or must not (False).
    """

    def __init__(
        self,
        program: Program,
        devices: int,
        meshes: Sequence[Mesh],
        storages: Sequence[Storage] = STORAGES,
        forced: Mapping[int, bool] | None = None,
    ) -> None:
        self.program = program
        self.devices = devices
        self.storages = tuple(s for s in STORAGES if s in storages)
        self.forced = dict(forced or {})
        self.groups = tuple(g for g in program.groups if g.id != program.batch)
        self.factorisations = tuple((devices // m, m) for m in range(1, devices + 1) if devices % m == 0)
        self._shardable = shardable_groups(program)
        self._last = {mesh: self._last_shardable(mesh) for mesh in self.factorisations}
        self.meshes = tuple(mesh for mesh in self.factorisations if mesh in meshes and self._possible(mesh))

    @classmethod
    def pinned(cls, program: Program, pins: Pins) -> PlanSpace:
        """The plans that keep to `pins`, over all devices that they were resolved for."""
        storages = STORAGES if pins.storage is None else (pins.storage,)
        forced = {group: axis is not None for group, axis in pins.groups.items()}
        return cls(program, pins.devices, pins.meshes(), storages, forced)

    def start(self) -> Partial:
        """The undecided plan, or the whole plan where the pins leave only one."""
        return self._settle(Partial())

    def choices(self, partial: Partial) -> tuple[Choice, ...]:
        """The next decision, invalid ways included; empty when the plan is complete."""
        if partial.mesh is None:
            return tuple(
                Choice("mesh", self._settle(Partial(mesh)), mesh in self.meshes) for mesh in self.factorisations
            )
        if partial.storage is None:
            allowed = self._storages(partial.mesh)
            return tuple(Choice("storage", self._settle(replace(partial, storage=s)), s in allowed) for s in STORAGES)
        if len(partial.groups) == len(self.groups):
            return ()
        group = self.groups[len(partial.groups)]
        allowed_sharding = self._next_shardings(partial.groups, partial.mesh)
        return tuple(
            Choice(
                "group",
                self._settle(replace(partial, groups=(*partial.groups, sharded))),
                sharded in allowed_sharding,
                group,
            )
            for sharded in (False, True)
        )

    def complete(self, partial: Partial, shard: bool) -> Decision:
        """The plan in which all that is left is decided one way.

        Args:
          shard: False: groups whole and nothing more stored sharded (least communication, most memory), but for the
            last group where the axis `model` would shard nothing;
            True: every group that can be sharded is, and all state is stored sharded (least memory).
        """
        mesh = partial.mesh or (self.meshes[-1] if shard else self.meshes[0])
        storage = partial.storage or self._storages(mesh)[-1 if shard else 0]
        groups = list(partial.groups)
        while len(groups) < len(self.groups):
            groups.append(self._next_shardings(groups, mesh)[-1 if shard else 0])
        return Decision(*mesh, frozenset(itertools.compress((g.id for g in self.groups), groups)), storage)

    @property
    def size(self) -> int:
        """The number of different plans."""
        total = 0
        for mesh in self.meshes:
            options = [self._shardings(g, mesh) for g in self.groups]
            idle = mesh[1] > 1 and all(False in o for o in options)
            total += len(self._storages(mesh)) * (math.prod(map(len, options)) - idle)
        return total

    def __contains__(self, decision: Decision) -> bool:
        mesh = (decision.data, decision.model)
        return (
            mesh in self.meshes
            and decision.storage in self._storages(mesh)
            and all((g.id in decision.sharded) in self._shardings(g, mesh) for g in self.groups)
            and decision.sharded <= {g.id for g in self.groups}
            and (decision.model == 1 or bool(decision.sharded))
        )

    def __iter__(self) -> Iterator[Decision]:
        """Every plan once."""
        for mesh in self.meshes:
            for storage in self._storages(mesh):
                for flags in itertools.product(*(self._shardings(g, mesh) for g in self.groups)):
                    if mesh[1] > 1 and not any(flags):
                        continue
                    yield Decision(*mesh, frozenset(itertools.compress((g.id for g in self.groups), flags)), storage)

    def _possible(self, mesh: Mesh) -> bool:
        batch = self.program.batch
        splits_batch = mesh[0] == 1 or (batch is not None and self.program.groups[batch].divisor % mesh[0] == 0)
        used = mesh[1] == 1 or self._last[mesh] is not None
        return (
            splits_batch and used and bool(self._storages(mesh)) and all(self._shardings(g, mesh) for g in self.groups)
        )

    def _storages(self, mesh: Mesh) -> tuple[Storage, ...]:
        # Over a data axis of one device every storage is the same.
        return self.storages if mesh[0] > 1 else self.storages[:1]

    def _shardings(self, group: Group, mesh: Mesh) -> tuple[bool, ...]:
        possible = mesh[1] > 1 and group.id in self._shardable and group.divisor % mesh[1] == 0
        options = (False, True) if possible else (False,)
        forced = self.forced.get(group.id)
        return options if forced is None else tuple(o for o in options if o == forced)

    def _next_shardings(self, decided: Sequence[bool], mesh: Mesh) -> tuple[bool, ...]:
        """Ways to take the next group, `decided` the ones before it: an axis must shard some group in the end."""
        position = len(decided)
        if mesh[1] > 1 and position == self._last[mesh] and not any(decided):
            return (True,)
        return self._shardings(self.groups[position], mesh)

    def _last_shardable(self, mesh: Mesh) -> int | None:
        """The place of the last group that the mesh can shard."""
        return max((i for i, g in enumerate(self.groups) if True in self._shardings(g, mesh)), default=None)

    def _settle(self, partial: Partial) -> Partial:
        """Takes the decisions that leave one way only."""
        if partial.mesh is None:
            if len(self.meshes) != 1:
                return partial
            partial = Partial(self.meshes[0])
        mesh = partial.mesh
        if mesh is None or mesh not in self.meshes:
            return partial
        if partial.storage is None:
            storages = self._storages(mesh)
            if len(storages) != 1:
                return partial
            partial = replace(partial, storage=storages[0])
        groups = list(partial.groups)
        while len(groups) < len(self.groups):
            options = self._next_shardings(groups, mesh)
            if len(options) != 1:
                break
            groups.append(options[0])
        return replace(partial, groups=tuple(groups))
