"""`PipelineExecutable`: a step on stages of devices, each of which runs its part of every micro-batch.

In several processes each runs the tasks of the stages that it has devices of. All know the whole list of tasks, so
that every pair of processes agrees on the order of its messages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from automap_launch.plan.layout import Layout, Spec
from automap_launch.plan.sharding import DATA
from automap_launch.runtime import mesh as meshes
from automap_launch.runtime.channel import Channel, Message
from automap_launch.runtime.choose_channel import choose_channel
from automap_launch.runtime.compile_once import CompileOnce
from automap_launch.runtime.jax_internals import shardings_of, with_weak_type
from automap_launch.runtime.joint import JointMesh
from automap_launch.runtime.one_in_flight import OneInFlight
from automap_launch.runtime.pipeline_parts import flow_shape, flow_spec
from automap_launch.runtime.placement import Materialize, is_deferred, place_exactly
from automap_launch.runtime.precision import Precision
from automap_launch.runtime.schedules import Edge, Order, Task, compute_order, merged, with_messages
from automap_launch.runtime.sections import plain, typed
from automap_launch.runtime.stage import Stage, Work, part_of
from automap_launch.split.pipeline import MICRO, PartId, Pipeline
from automap_launch.train_step import Argument, Result

Leaves = Sequence[Any]

# Results below this size are whole on every device: metrics, which the script reads.
_SMALL_BYTES = 2**20


class PipelineExecutable:
    """One signature of a step as a pipeline. Used as `Executable` is.

    The state of a stage lies on the stage's devices, before and after a step; so does what replaces it.

    Args:
      pipeline: the step in parts. arguments, results: of the step.
      layout: shardings over the axes within a stage.
      schedule: one of `plan.decision.SCHEDULES`; `zero_bubble` for a pipeline cut with `split_backward`.
      micro_batches: a step.
      devices: for each stage its devices, in the order of the mesh.
      channel: makes what carries the step's messages from stage to stage. materialize: creates deferred values in
        given shardings.

    Raises:
      ValueError: the pipeline is cut for another number of stages, micro-batches or replicas.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        arguments: Sequence[Argument],
        results: Sequence[Result],
        layout: Layout,
        *,
        schedule: str,
        micro_batches: int,
        devices: Sequence[Sequence[Any]],
        channel: Callable[[Sequence[Message]], Channel] | None = None,
        materialize: Materialize | None = None,
    ) -> None:
        replicas = pipeline.pieces // micro_batches
        if pipeline.pieces % micro_batches or replicas not in (1, layout.mesh.get(DATA, 1)):
            raise ValueError(
                f"the step is cut into {pipeline.pieces} pieces, which is not {micro_batches} micro-batches on "
                f"{layout.mesh.get(DATA, 1)} replicas"
            )
        if len(devices) != pipeline.stages:
            raise ValueError(f"the step is cut into {pipeline.stages} stages, got devices for {len(devices)}")
        self.arguments = tuple(arguments)
        self.results = tuple(results)
        self.layout = layout
        self.micro_batches = micro_batches
        self.pipeline = pipeline
        self.meshes = tuple(meshes.make_mesh(layout.mesh, of_stage) for of_stage in devices)
        self.joint = JointMesh(self.meshes)
        self.compile_once = CompileOnce()
        self._materialize = materialize
        self._argument_of = {v: i for i, v in enumerate(pipeline.graph.arguments)}
        self.shardings = {
            i: meshes.sharding(self.meshes[pipeline.owner[v]], layout.storage[i])
            for i, v in enumerate(pipeline.graph.arguments)
            if v in pipeline.owner
        }
        self.order = _order(pipeline, schedule, micro_batches)
        self.tasks = merged(self.order, _edges(pipeline), _rough_seconds)
        self._sum_specs = _sum_specs(pipeline, layout)
        self._total_specs = _total_specs(pipeline, layout, self._sum_specs) if replicas > 1 else self._sum_specs
        self._layer_specs = {v: layout.compute[self._argument_of[stack]] for v, stack in pipeline.layers.items()}
        self.messages = {task: self._message(task, replicas) for task in self.tasks if task.kind == "send"}
        work = Work(
            pipeline=pipeline,
            arguments=self.arguments,
            results=self.results,
            layout=layout,
            shardings=self.shardings,
            sum_specs=self._sum_specs,
            total_specs=self._total_specs,
            layer_specs=self._layer_specs,
            out=self._out(replicas),
            micro_batches=micro_batches,
            replicas=replicas,
            messages=self.messages,
            argument_of=self._argument_of,
            compile_once=self.compile_once,
        )
        self._work = work
        make_channel = channel or choose_channel(self.joint.processes, self.meshes[0].devices.flat[0].platform)
        self._channel = make_channel(tuple(self.messages.values()))
        own = jax.process_index()
        self._stages = {
            number: Stage(work, number, mesh, self._channel)
            for number, mesh in enumerate(self.meshes)
            if any(device.process_index == own for device in mesh.devices.flat)
        }
        self._own_tasks = tuple(task for task in self.tasks if task.stage in self._stages)
        self._small = [k for k, result in enumerate(self.results) if self._is_small(result)]
        self._seen: dict[int, Any] = {}
        self._weak_state = [i for i in self.shardings if self.arguments[i].weak_type]
        self._precision = Precision(self.arguments, self.results)
        self._in_flight = OneInFlight(tuple(self.joint.devices), self.results, stages=True)

    def __call__(self, leaves: Leaves) -> list[Any]:
        """Runs one step; returns its flat results, still being computed. State is placed first where need be."""
        self._in_flight.wait()
        with self._precision():
            results = self._step(self.place(leaves))
        self._in_flight.started(results)
        return results

    def _step(self, placed: Leaves) -> list[Any]:
        values = plain(self.arguments, placed)
        self._channel.begin()
        for stage in self._stages.values():
            stage.begin(values)
        for task in self._own_tasks:
            self._stages[task.stage].run(task)
        made = [self._result(v, values) for v in self.pipeline.graph.results]
        for stage in self._stages.values():
            stage.end()
        if self.joint.processes > 1:
            if self._in_flight.active:
                # A process that waits in a collective has no threads left for what others still wait for.
                jax.block_until_ready(made)
            for k, value in zip(self._small, self.joint.everywhere([made[k] for k in self._small]), strict=True):
                made[k] = value
        results = typed(self.results, made)
        for k, result in enumerate(self.results):
            if result.weak_type:
                results[k] = with_weak_type(results[k], True)
        return results

    def place(self, leaves: Leaves) -> list[Any]:
        """Flat arguments, the state among them on its stages' devices; what is there already is passed on as it is.

        Raises:
          ValueError: another number of leaves than the step has arguments.
        """
        if len(leaves) != len(self.arguments):
            raise ValueError(f"the step has {len(self.arguments)} arguments, got {len(leaves)}")
        placed = list(leaves)
        found = shardings_of(placed)
        deferred: dict[int, list[int]] = defaultdict(list)
        for i, leaf in enumerate(leaves):
            sharding = self.shardings.get(i)
            if sharding is None:
                placed[i] = self._own_copy(leaf)
            elif is_deferred(leaf):
                deferred[self.pipeline.owner[self.pipeline.graph.arguments[i]]].append(i)
            elif found[i] is None or found[i] is not self._seen.get(i):
                placed[i] = self._on_stage(leaf, sharding, self.arguments[i])
                if placed[i] is leaf:
                    self._seen[i] = found[i]  # that very object: comparing shardings at every step would take time
        for indices in deferred.values():
            if self._materialize is None:
                path = self.arguments[indices[0]].path
                raise ValueError(f"argument {path} is deferred, and nothing here can create it")
            created = self._materialize([placed[i] for i in indices], [self.shardings[i] for i in indices])
            for i, value in zip(indices, created, strict=True):
                placed[i] = value
        for i in self._weak_state:
            if getattr(placed[i], "weak_type", False):
                placed[i] = with_weak_type(placed[i], False)  # a stage's functions know strong types alone
        return placed

    def _on_stage(self, leaf: Any, sharding: NamedSharding, argument: Argument) -> Any:
        if isinstance(leaf, jax.Array):
            if leaf.sharding == sharding:
                return leaf
            if self.joint.is_shared(leaf) and leaf.sharding.device_set != sharding.device_set:
                return self.joint.on_stage(leaf, sharding)
        return place_exactly(leaf, sharding, argument.dtype)

    def _own_copy(self, leaf: Any) -> Any:
        """A batch, or a scalar, as every process has it: an array that lies on other processes' devices is copied."""
        if isinstance(leaf, jax.Array) and not is_deferred(leaf) and self.joint.is_shared(leaf):
            return self.joint.everywhere([leaf])[0].addressable_shards[0].data
        return leaf

    def _result(self, value: int, values: Sequence[Any]) -> Any:
        maker = self.pipeline.makers.get(value)
        if maker is not None and maker.kind != "hold":
            if maker.stage in self._stages:
                return self._stages[maker.stage].values[value]
            kind = self.pipeline.graph.values[value]
            return jax.make_array_from_single_device_arrays(
                kind.shape, self._work.out[value], [], dtype=np.dtype(kind.dtype)
            )
        index = self._argument_of[value]
        if index in self.shardings:
            return values[index]
        return place_exactly(values[index], meshes.sharding(self.meshes[0], ()), self._work.dtype(index))

    def _is_small(self, result: Result) -> bool:
        itemsize = 8 if result.dtype.startswith("key<") else np.dtype(result.dtype).itemsize
        return result.replaces is None and math.prod(result.shape) * itemsize <= _SMALL_BYTES

    # Shardings

    def _message(self, task: Task, replicas: int) -> Message:
        part, target = part_of(task), task.peer or 0
        values = self.pipeline.cargo[part, target]
        kinds = [self.pipeline.graph.values[v] for v in values]
        if part.kind in MICRO:
            specs = [flow_spec(self.pipeline, v, replicas) for v in values]
            shapes = [flow_shape(self.pipeline, v, replicas) for v in values]
            kinds = [replace(kind, shape=shape) for kind, shape in zip(kinds, shapes, strict=True)]
        else:
            specs = [PartitionSpec(*self._once_spec(v)) for v in values]
        return Message(
            task=task,
            kinds=tuple(kinds),
            sources=tuple(NamedSharding(self.meshes[task.stage], spec) for spec in specs),
            targets=tuple(NamedSharding(self.meshes[target], spec) for spec in specs),
        )

    def _once_spec(self, value: int) -> Spec:
        if value in self._layer_specs:
            return self._layer_specs[value]
        index = self._argument_of.get(value)
        if index is None:
            return self._total_specs.get(value, ())
        same = self.pipeline.graph.shape(value) == self.arguments[index].shape
        return self.layout.compute[index] if same else ()  # a PRNG key's words are whole

    def _out(self, replicas: int) -> dict[int, NamedSharding]:
        """Of each result that a stage makes."""
        graph, found = self.pipeline.graph, {}
        for result, v in zip(self.results, graph.results, strict=True):
            maker = self.pipeline.makers.get(v)
            if maker is None or maker.kind == "hold":
                continue
            mesh = self.meshes[maker.stage]
            if result.replaces is not None and graph.shape(v) == graph.shape(graph.arguments[result.replaces]):
                found[v] = self.shardings[result.replaces]
            elif maker.kind == "reduce":
                found.setdefault(v, NamedSharding(mesh, PartitionSpec(*self._total_specs.get(v, ()))))
            else:
                found.setdefault(v, NamedSharding(mesh, PartitionSpec()))
        return found


def _order(pipeline: Pipeline, schedule: str, micro_batches: int) -> Order:
    """Every stage's tasks, with messages."""
    rounds = 1 + max((part.round for part in pipeline.sections), default=0)
    order = []
    for stage, tasks in enumerate(compute_order(schedule, pipeline.stages, micro_batches)):
        order.append(
            (
                Task("hold", stage),
                Task("prepare", stage),
                *(t for t in tasks if PartId(t.kind, stage) in pipeline.sections),  # type: ignore[arg-type]
                Task("reduce", stage),
                *(Task("update", stage, number) for number in range(rounds)),
            )
        )
    return with_messages(tuple(order), _edges(pipeline))


def _edges(pipeline: Pipeline) -> list[Edge]:
    return [Edge(_task(source), _task(target)) for source, target in pipeline.edges]


def _task(part: PartId) -> Task:
    if part.kind in MICRO:
        return Task(part.kind, part.stage, None)
    return Task(part.kind, part.stage, part.round)


def _rough_seconds(task: Task) -> float:
    """To put tasks of several stages in order; backward passes cost about twice as much as forward ones."""
    return {"forward": 1.0, "backward": 2.0, "weight": 1.0}.get(task.kind, 0.01)


def _sum_specs(pipeline: Pipeline, layout: Layout) -> dict[int, Spec]:
    """How sums over micro-batches are sharded within a stage: the gradient of a parameter like the parameter."""
    index = {v: i for i, v in enumerate(pipeline.graph.arguments)}
    return {total: layout.compute[index[argument]] for total, argument in pipeline.like.items()}


def _total_specs(pipeline: Pipeline, layout: Layout, sums: Mapping[int, Spec]) -> dict[int, Spec]:
    """How they are sharded once they are reduced over the data axis: as the state of their shape is stored, which is
    all that the update needs of them (ZeRO)."""
    stored: dict[tuple[tuple[int, ...], Spec], Spec] = {}
    for i, v in enumerate(pipeline.graph.arguments):
        if v in pipeline.owner and DATA in layout.storage[i]:
            inside = tuple(None if axis == DATA else axis for axis in layout.storage[i])
            stored[pipeline.graph.shape(v), inside] = layout.storage[i]
    shape = {total: pipeline.graph.shape(argument) for total, argument in pipeline.like.items()}
    return {total: stored.get((shape[total], tuple(spec)), spec) for total, spec in sums.items()}
