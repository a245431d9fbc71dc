"""State that is stacked over layers, on the stages that own the layers.

To the script it is one array: its leading dim is sharded over the stages. To each stage it is an array of its own
layers. Both are views of the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from automap_launch.plan.layout import Layout
from automap_launch.runtime.joint import STAGE, over_stages
from automap_launch.runtime.pipeline import PipelineExecutable
from automap_launch.runtime.placement import Materialize, is_deferred, place
from automap_launch.train_step import Argument, Result

Leaves = Sequence[Any]


@dataclass(frozen=True)
class Chunked:
    """Arguments, results and layout of a step with each stacked state in chunks, one after the other."""

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    layout: Layout


def chunked(arguments: Sequence[Argument], results: Sequence[Result], layout: Layout, chunks: Sequence[int]) -> Chunked:
    """`chunks`: see `SplitStep`."""
    first = [0, *accumulate(chunks)]
    out: list[Argument] = []
    made: list[Result] = []
    results_specs = []
    for argument, count in zip(arguments, chunks, strict=True):
        out += [
            replace(argument, path=_path(argument.path, c, count), shape=_shape(argument.shape, count))
            for c in range(count)
        ]
    for k, result in enumerate(results):
        count = 1 if result.replaces is None else chunks[result.replaces]
        for c in range(count):
            replaces = None if result.replaces is None else first[result.replaces] + c
            made.append(
                replace(result, path=_path(result.path, c, count), shape=_shape(result.shape, count), replaces=replaces)
            )
            results_specs.append(layout.results[k])
    compute, storage = (
        tuple(spec for spec, count in zip(specs, chunks, strict=True) for _ in range(count))
        for specs in (layout.compute, layout.storage)
    )
    inner = Layout(layout.mesh, compute, storage, tuple(results_specs))
    return Chunked(tuple(out), tuple(made), inner)


def _path(path: str, chunk: int, count: int) -> str:
    return path if count == 1 else f"{path}[{chunk} of {count}]"


def _shape(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return shape if count == 1 else (shape[0] // count, *shape[1:])


class StackedPipeline:
    """A pipeline with stacked state, used as `PipelineExecutable` is.

    Args:
      inner: runs the step with its state in chunks. arguments, results: of the step as the script knows it.
      chunks: see `SplitStep`. materialize: creates deferred values in given shardings.
    """

    def __init__(
        self,
        inner: PipelineExecutable,
        arguments: Sequence[Argument],
        results: Sequence[Result],
        chunks: Sequence[int],
        materialize: Materialize | None = None,
    ) -> None:
        self.arguments = tuple(arguments)
        self.results = tuple(results)
        self.inner = inner
        self._chunks = tuple(chunks)
        self._materialize = materialize
        self._stacks = {
            i: self._sharding(start, count)
            for i, (start, count) in enumerate(zip([0, *accumulate(chunks)], chunks, strict=False))
            if count > 1
        }

    def __call__(self, leaves: Leaves) -> list[Any]:
        """Runs one step; see `PipelineExecutable`."""
        results = self.inner(self._taken_apart(self.place(leaves)))
        out, at = [], 0
        for result in self.results:
            stack = self._stacks.get(-1 if result.replaces is None else result.replaces)
            if stack is None:
                out.append(results[at])
                at += 1
            else:
                out.append(self._joined(results[at : at + stack.count], result.shape, stack))
                at += stack.count
        return out

    def place(self, leaves: Leaves) -> list[Any]:
        """Flat arguments; stacked state spread over the stages. Other state is placed when the step runs."""
        if len(leaves) != len(self.arguments):
            raise ValueError(f"the step has {len(self.arguments)} arguments, got {len(leaves)}")
        placed = list(leaves)
        deferred = [i for i in self._stacks if is_deferred(placed[i])]
        if deferred:
            if self._materialize is None:
                path = self.arguments[deferred[0]].path
                raise ValueError(f"argument {path} is deferred, and nothing here can create it")
            for i in deferred:
                placed[i] = self._materialize([placed[i]], [self._stacks[i].whole])[0]
        for i, stack in self._stacks.items():
            placed[i] = place(placed[i], stack.whole, self.arguments[i].dtype)
        return placed

    def _taken_apart(self, leaves: Leaves) -> list[Any]:
        out: list[Any] = []
        for i, leaf in enumerate(leaves):
            stack = self._stacks.get(i)
            if stack is None:
                out.append(leaf)
                continue
            shards = {shard.device: shard.data for shard in leaf.addressable_shards}
            shape = _shape(leaf.shape, stack.count)
            for own in stack.own:
                local = [shards[d] for d in own.addressable_devices]
                out.append(jax.make_array_from_single_device_arrays(shape, own, local, dtype=leaf.dtype))
        return out

    @staticmethod
    def _joined(pieces: Sequence[Any], shape: tuple[int, ...], stack: _Stack) -> Any:
        shards = [shard.data for piece in pieces for shard in piece.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, stack.whole, shards, dtype=pieces[0].dtype)

    def _sharding(self, start: int, count: int) -> _Stack:
        own = tuple(self.inner.shardings[start + c] for c in range(count))
        mesh = own[0].mesh
        devices = np.stack([s.mesh.devices for s in own])
        kinds = (AxisType.Auto,) * devices.ndim
        joint = Mesh(devices, (STAGE, *mesh.axis_names), axis_types=kinds)
        return _Stack(count, NamedSharding(joint, over_stages(own[0].spec)), own)


@dataclass(frozen=True)
class _Stack:
    """Shardings of a stacked argument: as one array, and of each stage's own."""

    count: int
    whole: NamedSharding
    own: tuple[NamedSharding, ...]
