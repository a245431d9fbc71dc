"""The space of plans as a sequence of small decisions: the paper's hybrid of data, operator and pipeline parallelism.

The order is stages, micro-batches, schedule, mesh of a stage, storage, one choice a linkage group, then the cuts one
after the other. A state is a `Partial` plan. `PlanSpace.choices` lists what can be decided next, invalid ones marked; a
decision that leaves one way only is taken by itself, so every episode consists of real choices. The space is canonical:
two paths through it never end in the same plan. So with one device on `model` no group is asked, with one on `data` no
storage, with one micro-batch no schedule; and a group that larger ones leave no tensor to shard stays whole. A mesh
whose axis `model` shards nothing is left out: its devices would all compute the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster
from automap_launch.plan.baselines import inner_groups
from automap_launch.plan.block_bounds import BlockBounds
from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.decision import STORAGES, Decision, Schedule, Storage
from automap_launch.plan.group_bounds import GroupBounds
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Memory
from automap_launch.plan.sharding import rivals_of, shardable_groups
from automap_launch.program.program import Group, Program
from automap_launch.search.config import PruningConfig
from automap_launch.search.partition import Partition

Kind = Literal["stages", "micro_batches", "schedule", "mesh", "storage", "group", "cut"]
KINDS: tuple[Kind, ...] = ("stages", "micro_batches", "schedule", "mesh", "storage", "group", "cut")
Mesh = tuple[int, int]
# Ways to decide all that is left of a plan: least communication, as one would by hand, least memory.
Style = Literal["plain", "inner", "full"]
STYLES: tuple[Style, ...] = ("plain", "inner", "full")

# Sets of more groups are no masks of 64 bits.
MOST_GROUPS = 62
# So many groups at most are counted by listing every set of them.
_LISTED_GROUPS = 22
_REMEMBERED = 200_000


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

    def block_costs(self, decision: Decision) -> BlockCosts:
        """Costs of each block; the decision's cuts and schedule do not matter."""
        ...


class BoundedCostModel(CostModel, Protocol):
    """A cost model that knows bounds over many plans at once: what a proof of the optimum needs."""

    def group_bounds(self, decision: Decision) -> GroupBounds:
        """Bounds over sets of groups; those of the decision, its cuts and its schedule do not matter."""
        ...

    def block_bounds(self, decision: Decision) -> BlockBounds:
        """As `group_bounds`, of each block."""
        ...


@dataclass(frozen=True)
class Partial:
    """A plan of which the first decisions are taken; None: not yet.

    Attributes:
      mesh: (data, model) of each stage.
      groups: whether each of the first groups is sharded. cuts: the first cuts, as in `Decision`.
    """

    stages: int | None = None
    micro_batches: int | None = None
    schedule: Schedule | None = None
    mesh: Mesh | None = None
    storage: Storage | None = None
    groups: tuple[bool, ...] = ()
    cuts: tuple[int, ...] = ()


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


@dataclass(frozen=True)
class Head:
    """All of a plan but storage, groups and cuts."""

    stages: int
    micro_batches: int
    schedule: Schedule
    mesh: Mesh


class PlanSpace:
    """All plans of `program` that keep to the pins, over all devices that these were resolved for.

    Attributes:
      groups: those that are decided, in the order of decision. heads: every `Head` that some plan has.
      partition: the program's blocks as the cuts see them.
    """

    def __init__(self, program: Program, pins: Pins, pruning: PruningConfig | None = None) -> None:
        self.program = program
        self.pins = pins
        self.devices = pins.devices
        self.pruning = pruning or PruningConfig()
        self.storages = STORAGES if pins.storage is None else (pins.storage,)
        self.forced = {group: axis is not None for group, axis in pins.groups.items()}
        self.groups = tuple(g for g in program.groups if g.id != program.batch)
        self.partition = Partition(program.blocks, self.pruning.balance_window)
        self._place = {group.id: i for i, group in enumerate(self.groups)}
        self._shardable = shardable_groups(program)
        rivals = rivals_of(program)
        # For each group, of each argument with a dim in it, the larger groups there, as a set of places.
        self._larger = [
            [sum(1 << self._place[g] for g in larger if g in self._place) for larger in rivals.get(group.id, ())]
            for group in self.groups
        ]
        # Each partial plan is come upon again and again; what follows from it is worked out once.
        self.choices = lru_cache(maxsize=_REMEMBERED)(self._choices)
        self.complete = lru_cache(maxsize=_REMEMBERED)(self._complete)
        self._sharding_options = lru_cache(maxsize=None)(self._find_shardings)
        self._inner = lru_cache(maxsize=None)(lambda model: inner_groups(program, model))
        self._subsets = lru_cache(maxsize=None)(self._list_subsets)
        self._last = lru_cache(maxsize=None)(self._last_shardable)
        self.heads = tuple(sorted(self._heads(), key=lambda h: (h.stages, h.micro_batches)))
        self._head_set = frozenset(self.heads)
        self._valid: dict[Kind, dict[tuple[Any, ...], tuple[Any, ...]]] = {
            "stages": _by_prefix(((), h.stages) for h in self.heads),
            "micro_batches": _by_prefix(((h.stages,), h.micro_batches) for h in self.heads),
            "schedule": _by_prefix(((h.stages, h.micro_batches), h.schedule) for h in self.heads),
            "mesh": _by_prefix(((h.stages, h.micro_batches, h.schedule), h.mesh) for h in self.heads),
        }

    @classmethod
    def pinned(cls, program: Program, pins: Pins, pruning: PruningConfig | None = None) -> PlanSpace:
        """The plans that keep to `pins`."""
        return cls(program, pins, pruning)

    def start(self) -> Partial:
        """The undecided plan, or the whole plan where the pins leave only one."""
        return self._settle(Partial())

    def settled(self, partial: Partial) -> Partial:
        """`partial` with the decisions that leave one way only."""
        return self._settle(partial)

    def inner_groups(self, model: int) -> frozenset[int]:
        """Groups that a Megatron-style plan shards `model` ways."""
        return self._inner(model)

    def _choices(self, partial: Partial) -> tuple[Choice, ...]:
        """The next decision, invalid ways included; empty when the plan is complete."""
        kind = self._next(partial)
        if kind is None:
            return ()
        group = self.groups[len(partial.groups)] if kind == "group" else None
        valid = self._options(partial, kind)
        return tuple(
            Choice(kind, self._settle(_taken(partial, kind, value)), value in valid, group)
            for value in self._candidates(partial, kind)
        )

    def _complete(self, partial: Partial, style: Style = "plain") -> Decision:
        """The plan in which all that is left is decided one way.

        Args:
          style: `plain`: groups whole and nothing more stored sharded (least communication, most memory), but for the
            last group where the axis `model` would shard nothing. `inner`: groups as in a Megatron-style plan, the
            optimizer's state stored sharded. `full`: every group that can be sharded is, and all state is stored
            sharded (least memory). Cuts balance work; in `full` they balance memory.
        """
        while (kind := self._next(partial)) is not None:
            if kind == "group":
                partial = replace(partial, groups=self._default_groups(partial, style))
            elif kind == "cut" and self.pins.cuts is None:
                cuts = self.partition.balanced(partial.cuts, _known(partial.stages), memory=style == "full")
                partial = replace(partial, cuts=cuts)
            else:
                partial = _taken(partial, kind, self._default(partial, kind, style))
        return self._decision(partial)

    @property
    def size(self) -> int:
        """The number of different plans; at most so many, where there are too many groups to list their sets."""
        return sum(
            len(self._storages(h.mesh)) * self._subset_count(h.mesh[1]) * self._cut_count(h.stages) for h in self.heads
        )

    def __contains__(self, decision: Decision) -> bool:
        head = Head(decision.stages, decision.micro_batches, decision.schedule, (decision.data, decision.model))
        if head not in self._head_set or decision.storage not in self._storages(head.mesh):
            return False
        if not decision.sharded <= {g.id for g in self.groups}:
            return False
        flags: list[bool] = []
        for group in self.groups:
            if (group.id in decision.sharded) not in self._next_shardings(flags, head.mesh[1]):
                return False
            flags.append(group.id in decision.sharded)
        if self.pins.cuts is not None:
            return decision.cuts == self.pins.cuts
        return not decision.cuts or decision.cuts[-1] < self.partition.blocks

    def __iter__(self) -> Iterator[Decision]:
        """Every plan once."""
        for head in self.heads:
            for storage in self._storages(head.mesh):
                for sharded in self.group_sets(head.mesh[1]):
                    for cuts in self.cut_sets(head.stages):
                        yield Decision(
                            *head.mesh, sharded, storage, head.micro_batches, tuple(cuts), schedule=head.schedule
                        )

    def storages_of(self, mesh: Mesh) -> tuple[Storage, ...]:
        """The values of `Decision.storage` that differ on this mesh."""
        return self._storages(mesh)

    def group_sets(self, model: int) -> Iterator[frozenset[int]]:
        """Every set of groups that an axis `model` of this size can shard."""
        ids = [g.id for g in self.groups]
        for mask in self.subset_masks(model).tolist():
            yield frozenset(id_ for place, id_ in enumerate(ids) if mask >> place & 1)

    def subset_masks(self, model: int) -> npt.NDArray[np.int64]:
        """int64[sets]: the sets of `group_sets`, bit i for `groups[i]`."""
        return self._subsets(model)

    def extended(self, masks: npt.NDArray[np.int64], place: int, model: int) -> npt.NDArray[np.int64]:
        """Sets of the first groups, `groups[place]` decided next: each set with every way that it leaves for it."""
        group = self.groups[place]
        options = self._shardings(group, model)
        parts = [masks] if False in options else []
        if options == (True,):
            parts.append(masks | 1 << place)
        elif True in options:
            carried = np.zeros(len(masks), bool)
            for larger in self._larger[place]:
                carried |= masks & larger == 0
            parts.append(masks[carried] | 1 << place)
        return np.concatenate(parts) if parts else masks[:0]

    def carried(self, masks: npt.NDArray[np.int64], places: int) -> npt.NDArray[np.int64]:
        """Sets of the first `places` groups, without those that larger ones leave no tensor to shard (a pin may ask for
        such a group; see `sharding.carried`)."""
        found = masks.copy()
        for place in range(places):
            if self.forced.get(self.groups[place].id):
                left = np.zeros(len(masks), bool)
                for larger in self._larger[place]:
                    left |= masks & larger == 0
                found[~left] &= ~(1 << place)
        return found

    def free_groups(self, model: int) -> tuple[int, ...]:
        """Ids of groups that an axis `model` of this size may shard or leave whole."""
        return tuple(g.id for g in self.groups if len(self._shardings(g, model)) == 2)

    def canonical(self, mesh: Mesh, sharded: frozenset[int]) -> frozenset[int] | None:
        """The set of the space that shards the same tensors; None where the mesh's axis `model` would shard nothing."""
        flags: list[bool] = []
        for group in self.groups:
            options = self._next_shardings(flags, mesh[1])
            if not options:
                return None
            wanted = group.id in sharded
            flags.append(wanted if wanted in options else options[0])
        return frozenset(itertools.compress((g.id for g in self.groups), flags))

    def cut_sets(self, stages: int) -> Iterator[tuple[int, ...]]:
        """All cuts into so many stages."""
        if self.pins.cuts is not None:
            return iter([self.pins.cuts])
        return itertools.combinations(range(1, self.partition.blocks), stages - 1)

    # Heads

    def _heads(self) -> Iterator[Head]:
        for stages in self.pins.stage_counts():
            for mesh in self.pins.meshes(stages):
                if not self._possible(mesh):
                    continue
                for micro_batches in self.pins.micro_batch_counts(stages, mesh[0]):
                    schedules = self.pins.schedules(stages)
                    # One micro-batch has one order.
                    for schedule in schedules if micro_batches > 1 else schedules[:1]:
                        yield Head(stages, micro_batches, schedule, mesh)

    def _possible(self, mesh: Mesh) -> bool:
        batch = self.program.batch
        if mesh[0] > 1 and (batch is None or self.program.groups[batch].divisor % mesh[0]):
            return False
        used = mesh[1] == 1 or self._last(mesh[1]) is not None
        return used and bool(self._storages(mesh)) and all(self._shardings(g, mesh[1]) for g in self.groups)

    # What the next decision is

    def _next(self, partial: Partial) -> Kind | None:
        for kind, value in (
            ("stages", partial.stages),
            ("micro_batches", partial.micro_batches),
            ("schedule", partial.schedule),
            ("mesh", partial.mesh),
            ("storage", partial.storage),
        ):
            if value is None:
                return kind  # type: ignore[return-value]
        if len(partial.groups) < len(self.groups):
            return "group"
        return "cut" if len(partial.cuts) < _known(partial.stages) - 1 else None

    def _options(self, partial: Partial, kind: Kind) -> Sequence[Any]:
        """The valid values of the next decision."""
        if kind in ("storage", "group"):
            mesh = _known(partial.mesh)
            return self._storages(mesh) if kind == "storage" else self._next_shardings(partial.groups, mesh[1])
        if kind == "cut":
            if self.pins.cuts is not None:
                return self.pins.cuts[len(partial.cuts) :][:1]
            return self.partition.candidates(partial.cuts, _known(partial.stages))
        decided = (partial.stages, partial.micro_batches, partial.schedule)[: KINDS.index(kind)]
        return self._valid[kind].get(decided, ())

    def _candidates(self, partial: Partial, kind: Kind) -> Sequence[Any]:
        """All values that the next decision is about, the invalid ones among them."""
        if kind == "stages":
            return self.pins.stage_counts()
        if kind == "micro_batches":
            return sorted({h.micro_batches for h in self.heads})
        if kind == "mesh":
            size = self.devices // _known(partial.stages)
            return [(size // m, m) for m in range(1, size + 1) if size % m == 0]
        if kind == "storage":
            return STORAGES
        if kind == "group":
            return (False, True)
        return self._options(partial, kind)

    def _settle(self, partial: Partial) -> Partial:
        """Takes the decisions that leave one way only."""
        while (kind := self._next(partial)) is not None:
            options = self._options(partial, kind)
            if len(options) != 1:
                break
            partial = _taken(partial, kind, options[0])
        return partial

    def _default_groups(self, partial: Partial, style: Style) -> tuple[bool, ...]:
        flags, model = list(partial.groups), _known(partial.mesh)[1]
        inner = self._inner(model) if style == "inner" and model > 1 else frozenset()
        while len(flags) < len(self.groups):
            options = self._next_shardings(flags, model)
            wanted = style == "full" or self.groups[len(flags)].id in inner
            flags.append(wanted if wanted in options else options[0])
        return tuple(flags)

    def _default(self, partial: Partial, kind: Kind, style: Style) -> Any:
        options = self._options(partial, kind)
        if not options:
            raise ValueError(f"no plan begins with {partial}")
        if kind == "micro_batches":
            # A pipeline wants several for each stage, one stage none, unless it is short of memory.
            wanted = 4 * _known(partial.stages) if _known(partial.stages) > 1 else 1
            return options[-1] if style == "full" else min(options, key=lambda m: abs(math.log2(m / wanted)))
        if kind == "schedule":
            return "1f1b" if "1f1b" in options else options[0]
        if kind == "mesh":
            return options[0] if style == "plain" else options[min(1 + (style == "full"), len(options) - 1)]
        if kind == "storage":
            return options[min(STYLES.index(style), len(options) - 1)]
        return options[0]

    def _decision(self, partial: Partial) -> Decision:
        data, model = _known(partial.mesh)
        sharded = frozenset(itertools.compress((g.id for g in self.groups), partial.groups))
        return Decision(
            data,
            model,
            sharded,
            _known(partial.storage),
            _known(partial.micro_batches),
            partial.cuts,
            _known(partial.schedule),
        )

    # Storage and groups

    def _storages(self, mesh: Mesh) -> tuple[Storage, ...]:
        # Over a data axis of one device every storage is the same.
        return self.storages if mesh[0] > 1 else self.storages[:1]

    def _shardings(self, group: Group, model: int) -> tuple[bool, ...]:
        return self._sharding_options(self._place[group.id], model)

    def _find_shardings(self, place: int, model: int) -> tuple[bool, ...]:
        group = self.groups[place]
        possible = model > 1 and group.id in self._shardable and group.divisor % model == 0
        options = (False, True) if possible else (False,)
        forced = self.forced.get(group.id)
        return options if forced is None else tuple(o for o in options if o == forced)

    def _next_shardings(self, decided: Sequence[bool], model: int) -> tuple[bool, ...]:
        """Ways to take the next group, `decided` the ones before it.

        It is sharded only where the larger groups, decided before, leave it a tensor. Some group must be, in the end.
        """
        position = len(decided)
        options = self._sharding_options(position, model)
        if options == (False, True):
            taken = sum(1 << place for place, flag in enumerate(decided) if flag)
            if all(taken & larger for larger in self._larger[position]):
                return (False,)
        if model > 1 and position == self._last(model) and not any(decided):
            return (True,)
        return options

    def _last_shardable(self, model: int) -> int | None:
        """The place of the last group that the axis can shard."""
        return max((i for i, g in enumerate(self.groups) if True in self._shardings(g, model)), default=None)

    def _list_subsets(self, model: int) -> npt.NDArray[np.int64]:
        masks = np.zeros(1, np.int64)
        for place in range(len(self.groups)):
            masks = self.extended(masks, place, model)
        return masks[masks > 0] if model > 1 else masks

    def _cut_count(self, stages: int) -> int:
        return self.partition.cut_sets(stages) if self.pins.cuts is None else 1

    def _subset_count(self, model: int) -> int:
        free = self.free_groups(model)
        listed = len(free) <= _LISTED_GROUPS and len(self.groups) <= MOST_GROUPS
        return len(self._subsets(model)) if listed else 2 ** len(free)


def _known(value: Any) -> Any:
    assert value is not None, "decided before"
    return value


def _taken(partial: Partial, kind: Kind, value: Any) -> Partial:
    if kind == "group":
        return replace(partial, groups=(*partial.groups, value))
    if kind == "cut":
        return replace(partial, cuts=(*partial.cuts, value))
    return replace(partial, **{kind: value})


def _by_prefix(pairs: Iterator[tuple[tuple[Any, ...], Any]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    found: dict[tuple[Any, ...], dict[Any, None]] = {}
    for prefix, value in pairs:
        found.setdefault(prefix, {})[value] = None
    return {prefix: tuple(values) for prefix, values in found.items()}
