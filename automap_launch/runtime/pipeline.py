"""`PipelineExecutable`: a step on stages of devices, each of which runs its part of every micro-batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.plan.layout import Layout, Spec
from automap_launch.plan.sharding import DATA
from automap_launch.runtime import mesh as meshes
from automap_launch.runtime.channel import Channel, LocalChannel
from automap_launch.runtime.pipeline_parts import Reads, StageParts
from automap_launch.runtime.placement import Materialize, is_deferred, place
from automap_launch.runtime.schedules import Edge, Order, Task, compute_order, merged, with_messages
from automap_launch.runtime.sections import plain, typed
from automap_launch.split.pipeline import MICRO, PartId, Pipeline
from automap_launch.train_step import Argument, Result

Leaves = Sequence[Any]


class PipelineExecutable:
    """One signature of a step as a pipeline. Used as `Executable` is.

    The state of a stage lies on the stage's devices, before and after a step; so does what replaces it.

    Args:
      pipeline: the step in parts. arguments, results: of the step.
      layout: shardings over the axes within a stage.
      schedule: one of `schedules.SCHEDULES`; `zero_bubble` for a pipeline cut with `split_backward`.
      micro_batches: a step.
      devices: for each stage its devices, in the order of the mesh.
      channel: how values get from stage to stage. materialize: creates deferred values in given shardings.

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
        channel: Channel | None = None,
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
        self._channel = channel or LocalChannel()
        self._materialize = materialize
        self._argument_of = {v: i for i, v in enumerate(pipeline.graph.arguments)}
        self.shardings = {
            i: meshes.sharding(self.meshes[pipeline.owner[v]], layout.storage[i])
            for i, v in enumerate(pipeline.graph.arguments)
            if v in pipeline.owner
        }
        self.order = _order(pipeline, schedule, micro_batches)
        edges = _edges(pipeline)
        self.tasks = merged(self.order, edges, _rough_seconds)
        self._sum_specs = _sum_specs(pipeline, layout)
        self._stages = [_Stage(self, stage, mesh, replicas) for stage, mesh in enumerate(self.meshes)]

    def __call__(self, leaves: Leaves) -> list[Any]:
        """Runs one step; returns its flat results, still being computed. State is placed first where need be."""
        values = plain(self.arguments, self.place(leaves))
        for stage in self._stages:
            stage.begin(values)
        for task in self.tasks:
            self._stages[task.stage].run(task)
        made = [self._result(v, values) for v in self.pipeline.graph.results]
        for stage in self._stages:
            stage.end()
        return typed(self.results, made)

    def place(self, leaves: Leaves) -> list[Any]:
        """Flat arguments, the state among them on its stages' devices; what is there already is passed on as it is.

        Raises:
          ValueError: another number of leaves than the step has arguments.
        """
        if len(leaves) != len(self.arguments):
            raise ValueError(f"the step has {len(self.arguments)} arguments, got {len(leaves)}")
        placed = list(leaves)
        deferred: dict[int, list[int]] = defaultdict(list)
        for i, sharding in self.shardings.items():
            if is_deferred(placed[i]):
                deferred[self.pipeline.owner[self.pipeline.graph.arguments[i]]].append(i)
            else:
                placed[i] = _placed(placed[i], sharding, self.arguments[i].dtype)
        for indices in deferred.values():
            if self._materialize is None:
                path = self.arguments[indices[0]].path
                raise ValueError(f"argument {path} is deferred, and nothing here can create it")
            created = self._materialize([placed[i] for i in indices], [self.shardings[i] for i in indices])
            for i, value in zip(indices, created, strict=True):
                placed[i] = value
        return placed

    def _result(self, value: int, values: Sequence[Any]) -> Any:
        maker = self.pipeline.makers.get(value)
        if maker is not None and maker.kind != "hold":
            return self._stages[maker.stage].values[value]
        index = self._argument_of[value]
        if index in self.shardings:
            return values[index]
        mesh = self.meshes[0]
        return place(values[index], meshes.sharding(mesh, ()), self.module_dtype(index))

    def module_dtype(self, index: int) -> str:
        """Of an argument as the module takes it (a PRNG key by its words)."""
        return self.pipeline.graph.values[self.pipeline.graph.arguments[index]].dtype


class _Stage:
    """One stage: its functions, and its values during a step."""

    def __init__(self, whole: PipelineExecutable, stage: int, mesh: Mesh, replicas: int) -> None:
        self._whole = whole
        self._pipeline = pipeline = whole.pipeline
        self._channel = whole._channel
        self._number = stage
        self._mesh = mesh
        self._parts = StageParts(pipeline, stage, mesh, replicas, lambda v: whole._sum_specs.get(v, ()))
        self._own = {part: section for part, section in pipeline.sections.items() if part.stage == stage}
        self._micro = {part: self._micro_part(part) for part in self._own if part.kind in MICRO}
        self._wholes = {part: self._whole_part(part) for part in self._own if part.kind in ("prepare", "update")}
        self._zeros, self._reduce = self._parts.zeros(), self._parts.reduce()
        self._last_reader = _last_readers(self._micro)
        self._numbers = [np.int32(k) for k in range(whole.micro_batches)]
        self.values: dict[int, Any] = {}  # by value id: arguments, and what is made once a step
        self._copies: dict[int, Any] = {}  # arguments as the micro-batches take them
        self._flows: dict[int, dict[int, Any]] = {}  # by micro-batch, value id
        self._outbox: dict[tuple[PartId, int | None], dict[int, Any]] = {}
        self._sums: dict[int, Any] = {}
        self._pieces: dict[int, list[Any]] = {}
        self._leaves: Sequence[Any] = ()

    # A step

    def begin(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        self.values, self._copies, self._outbox = {}, {}, {}
        self._flows = {k: {} for k in range(self._whole.micro_batches)}
        sums = self._pipeline.sums[self._number]
        self._sums = dict(zip(sums, self._zeros(), strict=True)) if sums else {}
        self._pieces = {v: [] for v in self._pipeline.gathered[self._number]}

    def end(self) -> None:
        """Lets go of all that the step made."""
        self._leaves = ()
        self.values, self._copies, self._flows, self._sums, self._pieces, self._outbox = {}, {}, {}, {}, {}, {}

    def run(self, task: Task) -> None:
        part = PartId(task.kind, task.stage, (task.micro_batch or 0) if task.kind == "update" else 0)  # type: ignore[arg-type]
        if task.kind == "send":
            self._send(task)
        elif task.kind == "receive":
            self._receive(task)
        elif task.kind == "reduce":
            self._run_reduce()
        elif part in self._micro:
            self._run_micro(part, task.micro_batch or 0)
        elif part in self._wholes:
            self._run_whole(part)

    def _run_micro(self, part: PartId, number: int) -> None:
        run = self._micro[part]
        flows = self._flows[number]
        sums = [self._sums[v] for v in run.summed]
        totals, made = run.function(
            self._numbers[number],
            sums,
            [self._argument(v) for v in run.reads.rows],
            [flows[v] for v in run.reads.flows],
            [self._argument(v) for v in run.reads.alike],
        )
        self._sums.update(zip(run.summed, totals, strict=True))
        outputs = dict(zip(run.others, made, strict=True))
        for v in run.gathered:
            self._pieces[v].append(outputs[v])
        flows.update((v, outputs[v]) for v in run.kept)
        if run.sent:
            self._outbox[part, number] = {v: outputs[v] for v in run.sent}
        for v in self._last_reader.get(part, ()):
            flows.pop(v, None)

    def _run_reduce(self) -> None:
        sums, gathered = self._pipeline.sums[self._number], self._pipeline.gathered[self._number]
        totals, whole = self._reduce([self._sums[v] for v in sums], [self._pieces[v] for v in gathered])
        self.values.update(zip(sums, totals, strict=True))
        self.values.update(zip(gathered, whole, strict=True))
        self._sums, self._pieces = {}, {}

    def _run_whole(self, part: PartId) -> None:
        section = self._own[part]
        read = self._stored if part.kind == "update" else self._argument
        made = self._wholes[part](*(read(v) for v in section.inputs))
        self.values.update(zip(section.outputs, made, strict=True))

    def _send(self, task: Task) -> None:
        peer = task.peer or 0
        part, values = self._message(task, self._number, peer)
        outbox = self._outbox.get((part, task.micro_batch), {})
        arrays = [outbox[v] if v in outbox else self._stored(v) for v in values]
        self._channel.send(task, arrays, self._whole._stages[peer].incoming(part, values))

    def _receive(self, task: Task) -> None:
        peer = task.peer or 0
        sent = Task("send", peer, task.micro_batch, self._number, task.of)
        part, values = self._message(sent, peer, self._number)
        kinds = [self._pipeline.graph.values[v] for v in values]
        arrays = self._channel.receive(sent, kinds, self.incoming(part, values))
        if part.kind in MICRO:
            self._flows[task.micro_batch or 0].update(zip(values, arrays, strict=True))
        else:
            self.values.update(zip(values, arrays, strict=True))

    def _message(self, task: Task, source: int, target: int) -> tuple[PartId, tuple[int, ...]]:
        once = task.of not in MICRO
        part = PartId(task.of, source, (task.micro_batch or 0) if once and task.of == "update" else 0)  # type: ignore[arg-type]
        return part, self._pipeline.cargo[part, target]

    def incoming(self, part: PartId, values: Sequence[int]) -> list[NamedSharding]:
        """Shardings in which values of another stage's part arrive here."""
        if part.kind in MICRO:
            return [NamedSharding(self._mesh, self._parts.flow_spec(v)) for v in values]
        return [NamedSharding(self._mesh, PartitionSpec(*self._arriving(v))) for v in values]

    def _arriving(self, value: int) -> Spec:
        index = self._whole._argument_of.get(value)
        return self._whole.layout.compute[index] if index is not None else self._whole._sum_specs.get(value, ())

    # Values that are there once a step

    def _stored(self, value: int) -> Any:
        """A value as the update takes it: state as it is stored."""
        if value in self.values:
            return self.values[value]
        index = self._whole._argument_of[value]
        if index in self._whole.shardings:
            return self._leaves[index]
        return self._argument(value)

    def _argument(self, value: int) -> Any:
        """A value as the micro-batches take it: arguments in their compute sharding on this stage."""
        if value in self.values:
            return self.values[value]
        if value not in self._copies:
            index = self._whole._argument_of[value]
            sharding = NamedSharding(self._mesh, PartitionSpec(*self._whole.layout.compute[index]))
            if self._pipeline.graph.shape(value) != self._whole.arguments[index].shape:
                sharding = NamedSharding(self._mesh, PartitionSpec())  # a PRNG key's words
            self._copies[value] = _placed(self._leaves[index], sharding, self._whole.module_dtype(index))
        return self._copies[value]

    # Functions

    def _micro_part(self, part: PartId) -> _MicroPart:
        sent = frozenset(v for (p, _), values in self._pipeline.cargo.items() if p == part for v in values)
        others = self._parts.others(part)
        read_here = {v for p, s in self._own.items() if p != part and p.kind in MICRO for v in s.inputs}
        return _MicroPart(
            function=self._parts.micro(part, sent),
            reads=self._parts.reads(part),
            summed=self._parts.summed(part),
            others=others,
            gathered=tuple(v for v in others if v in self._pipeline.gathered[self._number]),
            kept=tuple(v for v in others if v in read_here),
            sent=tuple(v for v in others if v in sent),
        )

    def _whole_part(self, part: PartId) -> Any:
        section = self._own[part]
        graph = self._pipeline.graph
        shardings: dict[int, NamedSharding] = {}
        donated: list[int] = []
        later = {v for p, s in self._own.items() if p.kind == "update" and p.round > part.round for v in s.inputs}
        for result, v in zip(self._whole.results, graph.results, strict=True):
            if part.kind != "update" or v not in section.outputs:
                continue
            if result.replaces is None or graph.shape(v) != graph.shape(graph.arguments[result.replaces]):
                shardings.setdefault(v, NamedSharding(self._mesh, PartitionSpec()))
                continue
            old = graph.arguments[result.replaces]
            shardings[v] = self._whole.shardings[result.replaces]
            may = self._whole.arguments[result.replaces].donated and graph.results.count(old) == 0
            if may and old in section.inputs and old not in later:
                donated.append(old)
        return self._parts.whole(part, donated, shardings)


def _placed(leaf: Any, sharding: NamedSharding, dtype: str) -> Any:
    """`place`, with the result in that very sharding also where an equivalent one would do: by another one the parts
    would be compiled again. A numpy array is copied once, not for each micro-batch."""
    found = place(leaf, sharding, dtype)
    if getattr(found, "sharding", None) == sharding:
        return found
    return jax.device_put(found if isinstance(found, jax.Array) else np.array(found), sharding)


@dataclass(frozen=True)
class _MicroPart:
    """A part that runs for each micro-batch. `kept`: outputs that later parts of this stage read. `sent`: that other
    stages read."""

    function: Callable[..., tuple[list[Any], list[Any]]]
    reads: Reads
    summed: tuple[int, ...]
    others: tuple[int, ...]
    gathered: tuple[int, ...]
    kept: tuple[int, ...]
    sent: tuple[int, ...] = field(default=())


def _last_readers(parts: Mapping[PartId, _MicroPart]) -> dict[PartId, tuple[int, ...]]:
    """For each part, the values handed on within a micro-batch that no later part of the stage reads."""
    last: dict[int, PartId] = {}
    for part in sorted(parts, key=lambda p: MICRO.index(p.kind)):
        for v in parts[part].reads.flows:
            last[v] = part
    found: dict[PartId, list[int]] = defaultdict(list)
    for v, part in last.items():
        found[part].append(v)
    return {part: tuple(values) for part, values in found.items()}


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
