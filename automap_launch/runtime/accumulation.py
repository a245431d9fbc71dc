"""Gradient accumulation: a step in one executable that runs its micro-batches one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from automap_launch.plan.sharding import DATA
from automap_launch.runtime.pieces import blocks_of, over_data, piece_of, together
from automap_launch.runtime.sections import (
    SectionFunction,
    accumulate,
    accumulator,
    over_replicas,
    plain,
    typed,
)
from automap_launch.split.accumulate import Accumulation
from automap_launch.split.emit import INDEX
from automap_launch.train_step import Argument, Result


class AccumulatedStep:
    """The step as a traceable function of its flat arguments, for `Executable`.

    Along the mesh axis `data` each device cuts its own share of the batch: its micro-batch `i` of `m` is piece
    `d * m + i` of the batch, so that no example moves, and gradients are summed over devices once a step.

    Args:
      parts: the step, cut into `micro_batches` times as many pieces as the axis `data` has devices; or into
        `micro_batches` pieces, each of which is computed as XLA partitions it.
      arguments, results: of the step.
      micro_batches: a step.
      mesh: of the plan; axes other than `data` shard tensors as in the whole step.

    Raises:
      ValueError: `parts` is cut into another number of pieces.
    """

    def __init__(
        self,
        parts: Accumulation,
        arguments: Sequence[Argument],
        results: Sequence[Result],
        micro_batches: int,
        mesh: Mesh,
    ) -> None:
        data = dict(mesh.shape).get(DATA, 1)
        self._replicas = parts.pieces // micro_batches
        if parts.pieces % micro_batches or self._replicas not in (1, data):
            raise ValueError(
                f"the step is cut into {parts.pieces} pieces, which is not {micro_batches} micro-batches on "
                f"{data} replicas"
            )
        self._parts = parts
        self._arguments = tuple(arguments)
        self._results = tuple(results)
        self._micro_batches = micro_batches
        self._mesh = mesh
        self._prologue = SectionFunction(parts.prologue, "prologue") if parts.prologue else None
        self._invariant = SectionFunction(parts.invariant, "invariant") if parts.invariant else None
        self._micro = SectionFunction(parts.micro, "micro_batch")
        self._update = SectionFunction(parts.update, "update")

    def __call__(self, *leaves: Any) -> list[Any]:
        parts = self._parts
        values: dict[int, Any] = dict(zip(parts.graph.arguments, plain(self._arguments, leaves), strict=True))
        if self._prologue:
            values.update(self._prologue(values))
        if self._invariant:
            values.update(self._invariant(values))
        values.update(self._sums(values))
        results = self._update(values)
        return typed(self._results, [results[v] for v in parts.graph.results])

    def _sums(self, values: dict[int, Any]) -> dict[int, Any]:
        """Accumulated and gathered values of the whole batch."""
        parts = self._parts
        states = parts.analysis.states
        read = [v for v in self._micro.inputs if v != INDEX]
        batch = [v for v in read if states[v].kind == "batch"]
        alike = [v for v in read if states[v].kind != "batch"]
        rows = [blocks_of(values[v], states[v]) for v in batch]
        run = self._run(batch, alike)
        if self._replicas > 1:
            run = jax.shard_map(
                run,
                mesh=self._mesh,
                in_specs=([over_data(states[v]) for v in batch], [PartitionSpec()] * len(alike)),
                out_specs=(
                    [PartitionSpec()] * len(parts.accumulated),
                    [over_data(states[v]) for v in parts.gathered],
                ),
                axis_names={DATA},
                check_vma=False,
            )
        totals, pieces = run(rows, [values[v] for v in alike])
        kinds = parts.graph.values
        sums = {v: t.astype(kinds[v].dtype) for v, t in zip(parts.accumulated, totals, strict=True)}
        whole = {v: p.reshape(kinds[v].shape) for v, p in zip(parts.gathered, pieces, strict=True)}
        return {**sums, **whole}

    def _run(self, batch: Sequence[int], alike: Sequence[int]) -> Any:
        parts, count = self._parts, self._micro_batches
        states, kinds = parts.analysis.states, parts.graph.values

        def share(rows: list[Any], others: list[Any]) -> tuple[list[Any], list[Any]]:
            """The micro-batches of one replica."""
            first = lax.axis_index(DATA) * count if self._replicas > 1 else 0
            same = dict(zip(alike, others, strict=True))

            def one(totals: list[Any], number: Any) -> tuple[list[Any], list[Any]]:
                cut = {v: piece_of(x, states[v], number, count) for v, x in zip(batch, rows, strict=True)}
                index = (first + number).astype("int32")
                made = self._micro({**same, **cut, INDEX: index})
                sums = [
                    accumulate(total, made[v], states[v].reduction)
                    for v, total in zip(parts.accumulated, totals, strict=True)
                ]
                return sums, [made[v] for v in parts.gathered]

            start = [accumulator(kinds[v], states[v].reduction) for v in parts.accumulated]
            totals, stacked = lax.scan(one, start, jax.numpy.arange(count, dtype="int32"))
            if self._replicas > 1:
                totals = [
                    over_replicas(total, states[v].reduction, DATA)
                    for v, total in zip(parts.accumulated, totals, strict=True)
                ]
            return totals, [together(x, states[v]) for v, x in zip(parts.gathered, stacked, strict=True)]

        return share
