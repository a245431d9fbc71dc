"""The parts of a pipeline stage as compiled functions over the stage's mesh.

Within a stage the mesh axis `data` is handled by hand (`shard_map`): each device of it works on its own pieces of the
batch and keeps its own sums, which are added up once a step. Other axes are left to XLA.

Names say nothing of the stage: equal parts of different stages are equal programs, which are compiled once
(`compile_once.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.plan.layout import Spec
from automap_launch.plan.sharding import DATA
from automap_launch.program.batch_analysis import State
from automap_launch.runtime.compile_once import CompileOnce
from automap_launch.runtime.jax_internals import jit
from automap_launch.runtime.pieces import blocks_of, over_data, piece_of
from automap_launch.runtime.sections import SectionFunction, accumulate, accumulator
from automap_launch.split.boundary import is_low_precision
from automap_launch.split.emit import INDEX
from automap_launch.split.pipeline import MICRO, PartId, Pipeline


@dataclass(frozen=True)
class Reads:
    """What a micro-batch's part reads, by where it comes from: arguments that hold the batch (whole), values of other
    parts of the same micro-batch, and values that all micro-batches share."""

    rows: tuple[int, ...]
    flows: tuple[int, ...]
    alike: tuple[int, ...]


def flow_spec(pipeline: Pipeline, value: int, replicas: int) -> PartitionSpec:
    """Of a value handed on within a micro-batch: examples over `data`, or one entry a replica in front."""
    if replicas == 1:
        return PartitionSpec()
    state = pipeline.analysis.states[value]
    return PartitionSpec(*[None] * state.dim, DATA) if state.kind == "batch" else PartitionSpec(DATA)


def flow_shape(pipeline: Pipeline, value: int, replicas: int) -> tuple[int, ...]:
    """Of the same: the examples of one micro-batch."""
    shape, state = pipeline.graph.shape(value), pipeline.analysis.states[value]
    if state.kind == "batch":
        size = shape[state.dim] * replicas // pipeline.pieces
        return (*shape[: state.dim], size, *shape[state.dim + 1 :])
    return (replicas, *shape) if replicas > 1 else shape


class StageParts:
    """Makes the functions of one stage.

    Args:
      pipeline: the step in parts. stage: which stage.
      mesh: its devices. replicas: into how many shares its data axis cuts the batch: its size, or 1 where the batch
        is whole on every device.
      spec: how a sum over micro-batches is sharded besides. total_spec: once it is reduced over the data axis.
      compile_once: of all stages.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stage: int,
        mesh: Mesh,
        replicas: int,
        *,
        spec: Callable[[int], Spec],
        total_spec: Callable[[int], Spec],
        compile_once: CompileOnce,
    ) -> None:
        self._pipeline = pipeline
        self._compile_once = compile_once
        self._stage = stage
        self._mesh = mesh
        self._replicas = replicas
        self._spec = spec
        self._total_spec = total_spec
        self._states = pipeline.analysis.states
        self._kinds = pipeline.graph.values
        self._count = pipeline.pieces // replicas

    def _jit(self, function: Callable[..., Any], **options: Any) -> Any:
        return self._compile_once.function(jit(function, **options), self._mesh)

    def sharding(self, *spec: str | None) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def flow_spec(self, value: int) -> PartitionSpec:
        return flow_spec(self._pipeline, value, self._replicas)

    def reads(self, part: PartId) -> Reads:
        rows, flows, alike = [], [], []
        for v in self._pipeline.sections[part].inputs:
            if v == INDEX:
                continue
            if v in self._pipeline.flows:
                flows.append(v)
            elif self._states[v].kind == "batch":
                rows.append(v)
            else:
                alike.append(v)
        return Reads(tuple(rows), tuple(flows), tuple(alike))

    def micro(self, part: PartId, sent: frozenset[int]) -> Any:
        """`(number, sums, rows, flows, alike) -> (sums, outputs)`: one micro-batch of a part.

        `sums` are those of the part's outputs that are accumulated; `outputs` all others, in order, and those that
        are handed on as well. `sent`: outputs that leave the stage.
        """
        section = self._pipeline.sections[part]
        function = SectionFunction(section, part.kind)
        reads = self.reads(part)
        summed = self.summed(part)
        others = self.others(part)
        states, replicas, count = self._states, self._replicas, self._count

        def one(
            number: Any, sums: list[Any], rows: list[Any], flows: list[Any], alike: list[Any]
        ) -> tuple[list[Any], list[Any]]:
            first = lax.axis_index(DATA) * count if replicas > 1 else 0
            values = {v: piece_of(x, states[v], number, count) for v, x in zip(reads.rows, rows, strict=True)}
            values.update((v, self._unstacked(v, x)) for v, x in zip(reads.flows, flows, strict=True))
            values.update(zip(reads.alike, alike, strict=True))
            values[INDEX] = (first + number).astype("int32")
            made = function(values)
            totals = []
            for v, total in zip(summed, sums, strict=True):
                inner = total[0] if replicas > 1 else total
                inner = accumulate(inner, made[v], states[v].reduction)
                totals.append(inner[None] if replicas > 1 else inner)
            return totals, [self._stacked(v, made[v]) for v in others]

        def run(
            number: Any, sums: list[Any], rows: list[Any], flows: list[Any], alike: list[Any]
        ) -> tuple[list[Any], list[Any]]:
            blocks = [blocks_of(x, states[v]) for v, x in zip(reads.rows, rows, strict=True)]
            if replicas == 1:
                return one(number, sums, blocks, flows, alike)
            whole = PartitionSpec()
            mapped = jax.shard_map(
                one,
                mesh=self._mesh,
                in_specs=(
                    whole,
                    [PartitionSpec(DATA)] * len(sums),
                    [over_data(states[v]) for v in reads.rows],
                    [self.flow_spec(v) for v in reads.flows],
                    [whole] * len(alike),
                ),
                out_specs=([PartitionSpec(DATA)] * len(sums), [self.flow_spec(v) for v in others]),
                axis_names={DATA},
                check_vma=False,
            )
            made: tuple[list[Any], list[Any]] = mapped(number, sums, blocks, flows, alike)
            return made

        return self._jit(
            run,
            donate_argnums=(1,),
            out_shardings=(
                [self.sum_sharding(v) for v in summed],
                [NamedSharding(self._mesh, self.flow_spec(v)) if v in sent else None for v in others],
            ),
        )

    def summed(self, part: PartId) -> tuple[int, ...]:
        sums = set(self._pipeline.sums[self._stage])
        return tuple(v for v in self._pipeline.sections[part].outputs if v in sums)

    def others(self, part: PartId) -> tuple[int, ...]:
        """Outputs that are handed on within the micro-batch, or gathered."""
        sums = set(self._pipeline.sums[self._stage])
        handed_on = {v for p, s in self._pipeline.sections.items() if p != part and p.kind in MICRO for v in s.inputs}
        outputs = self._pipeline.sections[part].outputs
        return tuple(v for v in outputs if v not in sums or v in handed_on)

    def sum_sharding(self, value: int) -> NamedSharding:
        spec = self._spec(value)
        return self.sharding(*((DATA, *spec) if self._replicas > 1 else spec))

    def zeros(self) -> Any:
        """`() -> sums`: what the stage's sums begin with."""
        values = self._pipeline.sums[self._stage]

        def make() -> list[Any]:
            made = []
            for v in values:
                start = accumulator(self._kinds[v], self._states[v].reduction)
                made.append(jnp.broadcast_to(start, (self._replicas, *start.shape)) if self._replicas > 1 else start)
            return made

        return self._jit(make, out_shardings=[self.sum_sharding(v) for v in values])

    def unreduced(self) -> tuple[int, ...]:
        """Sums that hold more than the whole batch's value, or another type: one a replica, or in float32."""
        sums, kinds = self._pipeline.sums[self._stage], self._kinds
        return tuple(v for v in sums if self._replicas > 1 or is_low_precision(kinds[v].dtype))

    def reduce(self) -> Any:
        """`(sums, gathered) -> (sums, gathered)`: of the whole batch. `sums`: the `unreduced` ones. Each gathered
        value comes as a list, by micro-batch."""
        values, gathered = self.unreduced(), self._pipeline.gathered[self._stage]

        def run(sums: list[Any], pieces: list[list[Any]]) -> tuple[list[Any], list[Any]]:
            totals = []
            for v, total in zip(values, sums, strict=True):
                whole = _over_front(total, self._states[v]) if self._replicas > 1 else total
                totals.append(whole.astype(self._kinds[v].dtype))
            return totals, [self._put_together(v, p) for v, p in zip(gathered, pieces, strict=True)]

        return self._jit(
            run,
            out_shardings=(
                [self.sharding(*self._total_spec(v)) for v in values],
                [self.sharding()] * len(gathered),
            ),
        )

    def _put_together(self, value: int, pieces: Sequence[Any]) -> Any:
        """(micro, replica x outer x rest) -> (outer, replica, micro, rest)."""
        state, kind = self._states[value], self._kinds[value]
        count, replicas = len(pieces), self._replicas
        stacked = jnp.stack(pieces)
        shape = kind.shape
        rest = shape[state.dim] // (state.outer * replicas * count)
        before, after = shape[: state.dim], shape[state.dim + 1 :]
        split = stacked.reshape(count, *before, replicas, state.outer, rest, *after)
        at = 1 + state.dim
        moved = jnp.moveaxis(split, (at + 1, at, 0), (state.dim, state.dim + 1, state.dim + 2))
        return moved.reshape(shape)

    def _stacked(self, value: int, x: Any) -> Any:
        return x[None] if self._replicas > 1 and self._states[value].kind != "batch" else x

    def _unstacked(self, value: int, x: Any) -> Any:
        return x[0] if self._replicas > 1 and self._states[value].kind != "batch" else x

    def whole(self, part: PartId, donated: Sequence[int], shardings: Mapping[int, NamedSharding]) -> Any:
        """`(*inputs) -> outputs`: a part that runs once a step, partitioned by XLA.

        Args:
          donated: inputs whose memory the outputs may take. shardings: of outputs, where they are fixed.
        """
        section = self._pipeline.sections[part]
        function = SectionFunction(section, part.kind)

        def run(*inputs: Any) -> list[Any]:
            made = function(dict(zip(section.inputs, inputs, strict=True)))
            return [made[v] for v in section.outputs]

        # Without arguments nothing else would tell JAX the stage's devices.
        rest = None if section.inputs else self.sharding()
        return self._jit(
            run,
            donate_argnums=tuple(section.inputs.index(v) for v in donated),
            out_shardings=[shardings.get(v, rest) for v in section.outputs],
        )


def _over_front(stacked: Any, state: State) -> Any:
    if state.reduction == "add":
        return stacked.sum(0)
    if stacked.dtype == jnp.bool_:
        return stacked.any(0) if state.reduction == "max" else stacked.all(0)
    return stacked.max(0) if state.reduction == "max" else stacked.min(0)
