"""One stage of a pipeline: its functions, and its values during a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_launch.plan.layout import Layout, Spec
from automap_launch.runtime.channel import Channel, Message
from automap_launch.runtime.compile_once import CompileOnce
from automap_launch.runtime.pipeline_parts import Reads, StageParts
from automap_launch.runtime.placement import place_exactly
from automap_launch.runtime.schedules import Task
from automap_launch.split.pipeline import MICRO, PartId, PartKind, Pipeline
from automap_launch.train_step import Argument, Result


@dataclass(frozen=True)
class Work:
    """What all stages of an executable share.

    Attributes:
      pipeline: the step in parts. arguments, results: of the step. layout: within a stage.
      shardings: of the state, by argument index. sum_specs: of sums over micro-batches, within a stage; total_specs: of
        the same once they are reduced over the data axis.
      layer_specs: of layers of stacked state that one stage lends another, within a stage.
      out: shardings of what the step returns, by value id.
      micro_batches: a step. replicas: into how many shares the batch is cut within a stage.
      messages: by the task that sends them. argument_of: argument index by value id.
      compile_once: compiles the functions of all stages.
    """

    pipeline: Pipeline
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    layout: Layout
    shardings: Mapping[int, NamedSharding]
    sum_specs: Mapping[int, Spec]
    total_specs: Mapping[int, Spec]
    layer_specs: Mapping[int, Spec]
    out: Mapping[int, NamedSharding]
    micro_batches: int
    replicas: int
    messages: Mapping[Task, Message]
    argument_of: Mapping[int, int]
    compile_once: CompileOnce

    def dtype(self, index: int) -> str:
        """Of an argument as the module takes it (a PRNG key by its words)."""
        return self.pipeline.graph.values[self.pipeline.graph.arguments[index]].dtype


def part_of(task: Task) -> PartId:
    """The part that a task runs, or whose results a message carries."""
    kind = cast(PartKind, task.kind if task.of is None else task.of)
    source = task.peer if task.kind == "receive" else task.stage
    return PartId(kind, source or 0, (task.micro_batch or 0) if kind == "update" else 0)


class Stage:
    """A stage whose devices, or some of them, are of this process.

    Args:
      work: what it shares with the others. number: which stage. mesh: its devices.
    """

    def __init__(self, work: Work, number: int, mesh: Mesh, channel: Channel) -> None:
        self._work = work
        self._pipeline = pipeline = work.pipeline
        self._channel = channel
        self._number = number
        self._mesh = mesh
        self._parts = StageParts(
            pipeline,
            number,
            mesh,
            work.replicas,
            spec=lambda v: work.sum_specs.get(v, ()),
            total_spec=lambda v: work.total_specs.get(v, ()),
            compile_once=work.compile_once,
        )
        self._own = {part: section for part, section in pipeline.sections.items() if part.stage == number}
        self._micro = {part: self._micro_part(part) for part in self._own if part.kind in MICRO}
        self._wholes = {part: self._whole_part(part) for part in self._own if part.kind in ("prepare", "update")}
        self._zeros, self._reduce = self._parts.zeros(), self._parts.reduce()
        self._unreduced = self._parts.unreduced()
        self._last_reader = _last_readers(self._micro)
        self._numbers = [np.int32(k) for k in range(work.micro_batches)]
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
        self._flows = {k: {} for k in range(self._work.micro_batches)}
        sums = self._pipeline.sums[self._number]
        self._sums = dict(zip(sums, self._zeros(), strict=True)) if sums else {}
        self._pieces = {v: [] for v in self._pipeline.gathered[self._number]}

    def end(self) -> None:
        """Lets go of all that the step made."""
        self._leaves = ()
        self.values, self._copies, self._flows, self._sums, self._pieces, self._outbox = {}, {}, {}, {}, {}, {}

    def run(self, task: Task) -> None:
        if task.kind == "send":
            self._send(task)
        elif task.kind == "receive":
            self._receive(task)
        elif task.kind == "reduce":
            self._run_reduce()
        elif (part := part_of(task)) in self._micro:
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
        gathered = self._pipeline.gathered[self._number]
        self.values.update(self._sums)  # those that are whole already stay where they are: no copy of all gradients
        if self._unreduced or gathered:
            totals, whole = self._reduce([self._sums[v] for v in self._unreduced], [self._pieces[v] for v in gathered])
            self.values.update(zip(self._unreduced, totals, strict=True))
            self.values.update(zip(gathered, whole, strict=True))
        self._sums, self._pieces = {}, {}

    def _run_whole(self, part: PartId) -> None:
        section = self._own[part]
        read = self._argument
        if part.kind == "update":
            self._channel.settle()  # it donates state that other stages may still be sent
            read = self._stored
        made = self._wholes[part](*(read(v) for v in section.inputs))
        self.values.update(zip(section.outputs, made, strict=True))

    def _send(self, task: Task) -> None:
        part = part_of(task)
        outbox = self._outbox.get((part, task.micro_batch), {})
        values = self._pipeline.cargo[part, task.peer or 0]
        self._channel.send(self._work.messages[task], [outbox[v] if v in outbox else self._stored(v) for v in values])

    def _receive(self, task: Task) -> None:
        part = part_of(task)
        sent = Task("send", task.peer or 0, task.micro_batch, self._number, task.of)
        values = self._pipeline.cargo[part, self._number]
        arrays = self._channel.receive(self._work.messages[sent])
        target = self._flows[task.micro_batch or 0] if part.kind in MICRO else self.values
        target.update(zip(values, arrays, strict=True))

    # Values that are there once a step

    def _stored(self, value: int) -> Any:
        """A value as the update takes it: state as it is stored."""
        if value in self.values:
            return self.values[value]
        index = self._work.argument_of[value]
        if index in self._work.shardings:
            return self._leaves[index]
        return self._argument(value)

    def _argument(self, value: int) -> Any:
        """A value as the micro-batches take it: arguments in their compute sharding on this stage."""
        if value in self.values:
            return self.values[value]
        if value not in self._copies:
            index = self._work.argument_of[value]
            sharding = NamedSharding(self._mesh, PartitionSpec(*self._work.layout.compute[index]))
            if self._pipeline.graph.shape(value) != self._work.arguments[index].shape:
                sharding = NamedSharding(self._mesh, PartitionSpec())  # a PRNG key's words
            self._copies[value] = place_exactly(self._leaves[index], sharding, self._work.dtype(index))
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
        if part.kind == "update":
            shardings = {v: self._work.out[v] for v in section.outputs if v in self._work.out}
        else:
            specs = {v: self._work.layer_specs[v] for v in section.outputs if v in self._work.layer_specs}
            shardings = {v: NamedSharding(self._mesh, PartitionSpec(*spec)) for v, spec in specs.items()}
        later = {v for p, s in self._own.items() if p.kind == "update" and p.round > part.round for v in s.inputs}
        donated: list[int] = []
        for result, v in zip(self._work.results, graph.results, strict=True):
            if result.replaces is None or v not in shardings:
                continue
            old = graph.arguments[result.replaces]
            fits = graph.shape(old) == graph.shape(v) and self._work.arguments[result.replaces].donated
            if fits and old in section.inputs and old not in later and graph.results.count(old) == 0:
                donated.append(old)
        return self._parts.whole(part, donated, shardings)


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
