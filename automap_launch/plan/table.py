"""`MeshTable`: the prices of a program's rows on one mesh, worked out when a plan first asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.collectives import alpha_beta
from automap_launch.plan.decision import STORAGES, Decision, Storage
from automap_launch.plan.group_bounds import GroupBounds
from automap_launch.plan.liveness import Liveness
from automap_launch.plan.patterns import Assignment, PatternBook
from automap_launch.plan.pricing import (
    COUNTS,
    LANES,
    OPTIMIZER,
    OTHER,
    PARAMETERS,
    SECONDS,
    SIZES,
    WIDTH,
    price,
)
from automap_launch.plan.quantity import Array
from automap_launch.plan.sharding import DATA, MODEL, carried, rivals_of, shardable_groups
from automap_launch.program.program import Program


class MeshTable:
    """All plans of one mesh (`data` x `model` devices).

    A set of rows has one price for each storage level and each subset of its groups that is sharded. The price of
    subset number `mask` at level `storage` lies at `offset + storage * subsets + mask`.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        patterns: PatternBook,
        live: Liveness,
        mesh: dict[str, int],
    ) -> None:
        self._program = program
        self._live = live
        sets = patterns.sets
        self._row_sets = sets
        self._patterns = patterns
        self._site = patterns.site(mesh)
        self._speed = min(cluster.curves.alone_speedup, cluster.devices / (mesh[DATA] * mesh[MODEL]))
        self.mesh = mesh
        groups = [g for g in sorted(shardable_groups(program)) if program.groups[g].divisor % mesh[MODEL] == 0]
        self._rivals = rivals_of(program)
        self._place = {group: i for i, group in enumerate(groups)}
        usable = set(groups) if mesh[MODEL] > 1 else set()
        self._sets = [tuple(sorted(usable & touched)) for touched in sets.groups]
        self._subsets = np.array([1 << len(touched) for touched in self._sets], dtype=np.int64)
        ends = np.cumsum(self._subsets * len(STORAGES))
        self._offsets = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        self._prices = np.zeros((int(ends[-1]), WIDTH))
        self._known = np.zeros(int(ends[-1]), dtype=bool)
        self._bits = np.zeros((len(groups), len(self._sets)), dtype=np.int64)
        for column, touched in enumerate(self._sets):
            for bit, group in enumerate(touched):
                self._bits[self._place[group], column] = 1 << bit
        self._with_batch = np.array([program.batch is not None and program.batch in kind.groups for kind in live.kinds])
        self._alpha, self._beta = _lane_costs(cluster, mesh)
        self._kind_members = np.array(
            [[group in kind.groups for kind in live.kinds] for group in groups], dtype=np.int64
        ).reshape(len(groups), len(live.kinds))
        # By storage level and kind: what the data axis leaves of a tensor on one device.
        self._kind_shares = np.array(
            [
                [
                    1 / mesh[DATA] if program.batch in kind.groups or level >= kind.stored_from else 1.0
                    for kind in live.kinds
                ]
                for level in range(len(STORAGES))
            ]
        )

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """Of each set of rows, the groups that it touches and that the model axis can shard."""
        return tuple(self._sets)

    def bounds(self, storage: Storage) -> GroupBounds:
        """Lower bounds of a whole step as one stage, over the sets of groups that are sharded."""
        level = STORAGES.index(storage)
        waits = np.array([0.0 if combinable else 1.0 for _, _, combinable in LANES]) * self._alpha
        patterns = self._patterns.all_of(self._site, self.sets, level, lambda: self.assignments(level))
        prices = price(self._patterns, self._site, patterns, self._speed)
        seconds = prices[:, SECONDS].sum(axis=1) + prices[:, COUNTS] @ waits + prices[:, SIZES] @ self._beta
        held = prices[:, PARAMETERS] + prices[:, OPTIMIZER] + prices[:, OTHER]
        return GroupBounds(self.sets, self.by_set(np.stack([seconds, seconds, held])))

    def assignments(self, storage: int) -> Iterator[Assignment]:
        """Every subset of every set's groups, at a storage level (index in STORAGES)."""
        for column, start in enumerate(self._offsets.tolist()):
            subsets = int(self._subsets[column])
            for mask in range(subsets):
                yield (column, *self.assignment(column, start + storage * subsets + mask))

    def by_set(self, values: Array) -> tuple[Array, ...]:
        """By set float64[n, subsets]. Args: values: float64[n, as many as `assignments`]."""
        return tuple(np.split(values, np.cumsum(self._subsets)[:-1], axis=1))

    def places_of(self, decisions: Sequence[Decision]) -> npt.NDArray[np.int64]:
        """int64[decisions, sets of rows]: the place of each set's price."""
        storage = np.array([STORAGES.index(d.storage) for d in decisions], dtype=np.int64)
        where: npt.NDArray[np.int64] = (
            self._offsets + storage[:, None] * self._subsets + self._flags(decisions) @ self._bits
        )
        return where

    def carried(self, sharded: frozenset[int]) -> frozenset[int]:
        """Of groups those that the model axis shards (`sharding.carried`)."""
        return carried(sharded, self._rivals) if self.mesh[MODEL] > 1 else frozenset()

    def axes_of(self, groups: frozenset[int]) -> dict[int, str]:
        """The axis of every group that is on one. Args: groups: that the model axis shards."""
        axes = dict.fromkeys(groups, MODEL) if self.mesh[MODEL] > 1 else {}
        if self._program.batch is not None and self.mesh[DATA] > 1:
            axes[self._program.batch] = DATA
        return axes

    def assignment(self, column: int, place: int) -> tuple[dict[int, str], int]:
        """What a place stands for, of the set `column`: the axis of each group that is on one, and the storage level
        (index in STORAGES)."""
        storage, mask = divmod(place - int(self._offsets[column]), int(self._subsets[column]))
        axes = {group: MODEL for bit, group in enumerate(self._sets[column]) if mask >> bit & 1}
        if self._program.batch is not None and self.mesh[DATA] > 1:
            axes[self._program.batch] = DATA
        return axes, storage

    def totals(self, decisions: Sequence[Decision]) -> Array:
        """float64[decisions, WIDTH]: the columns of whole plans."""
        where = self.places_of(decisions)
        unknown = ~self._known[where]
        if unknown.any():
            self._fill(np.unique(where[unknown]))
        totals: Array = self._prices[where].sum(axis=1)
        return totals

    def lane_seconds(self, totals: Array) -> Array:
        """float64[decisions, lanes]: seconds of each lane's collectives."""
        sizes, counts = totals[:, SIZES], totals[:, COUNTS].copy()
        joined = np.array([combinable for _, _, combinable in LANES])
        buckets = np.maximum(np.ceil(sizes[:, joined] / self._row_sets.rules.combine_bytes), 1)
        counts[:, joined] = np.minimum(counts[:, joined], buckets)
        seconds: Array = counts * self._alpha + sizes * self._beta
        return seconds

    def shares(self, decisions: Sequence[Decision]) -> Array:
        """float64[decisions, kinds of `Liveness`]: the share of a tensor of each kind that one device holds."""
        levels = np.array([STORAGES.index(d.storage) for d in decisions], dtype=np.int64)
        return self._shares(self._flags(decisions), levels, 1)

    def _shares(self, flags: npt.NDArray[np.int64], levels: npt.NDArray[np.int64], micro_batches: int) -> Array:
        on_model = flags @ self._kind_members > 0
        over_data = self._kind_shares[levels]
        over_data = np.where(self._with_batch, over_data / micro_batches, over_data)
        shares: Array = np.where(on_model, over_data / self.mesh[MODEL], over_data)
        return shares

    def shares_of(self, groups: frozenset[int], storage: Storage, micro_batches: int) -> Array:
        """float64[kinds]: as `shares`, of one plan. Args: groups: that the model axis shards."""
        flags = np.array([group in groups for group in self._place], dtype=np.int64)
        shares: Array = self._shares(flags[None], np.array([STORAGES.index(storage)]), micro_batches)[0]
        return shares

    def reduced_together(self, shares: Array) -> Array:
        """float64[plans]: bytes of gradients that one reduction has at most, where gradients are stored sharded.

        Args:
          shares: of `shares`.
        """
        return self._live.reduced_together(shares, self._row_sets.rules.combine_bytes)

    def _flags(self, decisions: Sequence[Decision]) -> npt.NDArray[np.int64]:
        """int64[decisions, groups that the model axis can shard]: 1 where the group is sharded."""
        flags = np.zeros((len(decisions), len(self._place)), dtype=np.int64)
        for row, decision in enumerate(decisions):
            for group in carried(decision.sharded, self._rivals):
                flags[row, self._place[group]] = 1
        return flags

    def _fill(self, places: npt.NDArray[np.int64]) -> None:
        columns = np.searchsorted(self._offsets, places, side="right") - 1
        wanted = [(c, *self.assignment(c, p)) for c, p in zip(columns.tolist(), places.tolist(), strict=True)]
        self._prices[places] = price(self._patterns, self._site, self._patterns.of(self._site, wanted), self._speed)
        self._known[places] = True


def _lane_costs(cluster: Cluster, mesh: dict[str, int]) -> tuple[Array, Array]:
    """Of each lane: seconds a collective, and seconds a byte."""
    alpha, beta = np.zeros(len(LANES)), np.zeros(len(LANES))
    for lane, (kind, axis, _) in enumerate(LANES):
        alpha[lane], beta[lane] = alpha_beta(cluster, mesh, axis, kind)
    return alpha, beta
