"""The space of single-stage plans as a sequence of small decisions: mesh, storage, then one a linkage group.

A state is a `Partial` plan. `PlanSpace.choices` lists what can be decided next, invalid ones marked; a decision that
leaves one way only is taken by itself, so every episode consists of real choices. The space is canonical: two paths
through it never end in the same plan (with one device on `model` no group is asked, with one on `data` no storage).
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
        allowed_sharding = self._shardings(group, partial.mesh)
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
          shard: False: groups whole and nothing more stored sharded (least communication, most memory);
            True: every group that can be sharded is, and all state is stored sharded (least memory).
        """
        mesh = partial.mesh or (self.meshes[-1] if shard else self.meshes[0])
        storage = partial.storage or self._storages(mesh)[-1 if shard else 0]
        rest = (self._shardings(group, mesh)[-1 if shard else 0] for group in self.groups[len(partial.groups) :])
        sharded = itertools.compress((g.id for g in self.groups), itertools.chain(partial.groups, rest))
        return Decision(*mesh, frozenset(sharded), storage)

    @property
    def size(self) -> int:
        """The number of different plans."""
        return sum(
            len(self._storages(mesh)) * math.prod(len(self._shardings(g, mesh)) for g in self.groups)
            for mesh in self.meshes
        )

    def __contains__(self, decision: Decision) -> bool:
        mesh = (decision.data, decision.model)
        return (
            mesh in self.meshes
            and decision.storage in self._storages(mesh)
            and all((g.id in decision.sharded) in self._shardings(g, mesh) for g in self.groups)
            and decision.sharded <= {g.id for g in self.groups}
        )

    def __iter__(self) -> Iterator[Decision]:
        """Every plan once."""
        for mesh in self.meshes:
            for storage in self._storages(mesh):
                for flags in itertools.product(*(self._shardings(g, mesh) for g in self.groups)):
                    yield Decision(*mesh, frozenset(itertools.compress((g.id for g in self.groups), flags)), storage)

    def _possible(self, mesh: Mesh) -> bool:
        batch = self.program.batch
        splits_batch = mesh[0] == 1 or (batch is not None and self.program.groups[batch].divisor % mesh[0] == 0)
        return splits_batch and bool(self._storages(mesh)) and all(self._shardings(g, mesh) for g in self.groups)

    def _storages(self, mesh: Mesh) -> tuple[Storage, ...]:
        # Over a data axis of one device every storage is the same.
        return self.storages if mesh[0] > 1 else self.storages[:1]

    def _shardings(self, group: Group, mesh: Mesh) -> tuple[bool, ...]:
        options = (False, True) if mesh[1] > 1 and group.divisor % mesh[1] == 0 else (False,)
        forced = self.forced.get(group.id)
        return options if forced is None else tuple(o for o in options if o == forced)

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
        for group in self.groups[len(groups) :]:
            options = self._shardings(group, mesh)
            if len(options) != 1:
                break
            groups.append(options[0])
        return replace(partial, groups=tuple(groups))
