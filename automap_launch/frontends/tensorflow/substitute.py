"""`TensorflowSubstitute`: under it a running script's step runs as the plan says, and all other functions as they are.

The step is found again by its function's name and definition. It is traced for each signature; its state is that of
the captured step, variable by variable, so it runs under the captured step's layout.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from automap_launch.errors import CaptureError
from automap_launch.frontends.lowering import LoweredStep
from automap_launch.frontends.substitute import Build, Observer, StepReport, batch_size
from automap_launch.frontends.tensorflow import calls, refusals, tf_internals
from automap_launch.frontends.tensorflow.calls import Call, XlaCall
from automap_launch.frontends.tensorflow.lazy_tensor import LazyTensor
from automap_launch.frontends.tensorflow.lowering import NEW, LoweredGraph, lower_graph
from automap_launch.frontends.tensorflow.slots import Slot, SlotTable, materialized
from automap_launch.train_step import Argument, Runner, TrainStep

_PROGRAMS = "_automap_programs"

logger = logging.getLogger(__name__)


@dataclass
class Program:
    """A signature of the step.

    Attributes:
      slots: of the variables that the graph captures, and None for each captured constant.
      constants: captured constants, as they lie on the devices once the step has run.
      updates: for each result that is new state, the index of the argument that it replaces.
      kept, fixed: which of the returned tensors the module gives, and the values of the others.
    """

    runner: Runner
    arguments: tuple[Argument, ...]
    slots: list[Slot | None]
    constants: dict[int, Any]
    updates: list[tuple[int, int]]
    kept: list[int]
    fixed: dict[int, Any]
    scalars: list[tuple[int, str]]
    marker: int | None
    examples: int | None
    tokens: int | None
    signature: str
    fresh: bool = True


class TensorflowSubstitute:
    """Answers the calls of all `tf.function`s of a script.

    Args:
      step: the captured step.
      build, observer: see `frontends.substitute.Substitute`.
      slots: of the script's variables; its hooks are in place.
    """

    def __init__(self, step: TrainStep, *, build: Build, observer: Observer, slots: SlotTable) -> None:
        self._step = step
        self._build = build
        self._observer = observer
        self._slots = slots
        self._runners: weakref.WeakValueDictionary[Hashable, Runner] = weakref.WeakValueDictionary()
        self._started = False
        self._told: set[str] = set()

    def __call__(self, call: Call) -> Any:
        if call.identity != self._step.identity:
            return call.run_as_is()
        if tf_internals.recording_gradients():
            self._tell("it is called while a tf.GradientTape outside of it records")
            return call.run_as_is()
        traced = calls.for_xla(call)
        program = self._program(call, traced)
        if program is None:
            return calls.run_on_tensorflow(call, traced)
        return self._run(program, traced)

    def _program(self, call: Call, traced: XlaCall) -> Program | None:
        programs: dict[Hashable, Program | None] = traced.concrete.__dict__.setdefault(_PROGRAMS, {})
        key = tuple(tensor.shape for tensor in traced.flat)
        for seen, program in programs.items():
            if seen == key:
                return program
        program = programs[key] = self._make(call, traced)
        return program

    def _make(self, call: Call, traced: XlaCall) -> Program | None:
        flat = materialized(traced.flat)
        # XLA looks at variables where TensorFlow has them, at their types at least.
        lowered = lower_graph(call.function, traced.concrete, flat, traced.captured)
        arguments = self._as_captured(lowered)
        if arguments is None:
            if not self._started:
                raise CaptureError(
                    f"{refusals.described(call.identity)} has another state than the step that was captured under this "
                    "name: its variables have other names or shapes",
                    hint="the script must make the same variables in every run",
                )
            self._tell("its variables are not those of the captured step (another model?)")
            return None
        return self._compile(traced, lowered, arguments)

    def _as_captured(self, lowered: LoweredGraph) -> LoweredGraph | None:
        """The signature under the captured step's paths; None if it has other state."""
        captured = self._step
        if lowered.fingerprint == captured.fingerprint:
            return dataclasses.replace(lowered, arguments=captured.arguments, results=captured.results)
        mine = {a.path: (a.shape, a.dtype) for a in lowered.arguments if a.role == "state"}
        theirs = {a.path: (a.shape, a.dtype) for a in captured.arguments if a.role == "state"}
        if mine == theirs:
            return lowered
        # Another model of the same make, whose variables have other names (Keras numbers them).
        if list(mine.values()) != list(theirs.values()):
            return None
        names = dict(zip(mine, theirs, strict=True))
        arguments = [dataclasses.replace(a, path=names.get(a.path, a.path)) for a in lowered.arguments]
        results = [
            r if r.replaces is None else dataclasses.replace(r, path=f"{NEW}{arguments[r.replaces].path}")
            for r in lowered.results
        ]
        return dataclasses.replace(lowered, arguments=tuple(arguments), results=tuple(results))

    def _compile(self, traced: XlaCall, lowered: LoweredGraph, named: LoweredGraph) -> Program:
        step = LoweredStep(
            modules=dict.fromkeys(self._step.modules, lowered.artifact),
            arguments=named.arguments,
            results=named.results,
            out_tree=None,
            text=lowered.text,
            sources=lowered.sources,
            has_callbacks=False,
            fingerprint=lowered.fingerprint,
        )
        self._observer.lowered(step)
        # Another trace of the same program, or another model of the same make.
        key = (lowered.fingerprint, tuple(a.path for a in named.arguments))
        runner = self._runners.get(key)
        if runner is None:
            runner = self._runners[key] = self._build(lowered.artifact, step)
        variables = {id(tf_internals.raw_handle(v)): v for v in traced.concrete.graph.variables}
        slots = []
        for tensor in traced.captured:
            variable = variables.get(id(tensor))
            slots.append(self._slots.adopt(variable) if variable is not None else None)
        returned = [i for i in range(len(traced.concrete.outputs)) if i not in lowered.fixed]
        scalars = [(i, r.path) for i, r in enumerate(step.results[: lowered.returned]) if r.shape == ()]
        sizes = [(int(np.prod(r.shape)), i) for i, r in enumerate(step.results[: lowered.returned])]
        examples, tokens = batch_size(step.arguments)
        return Program(
            runner=runner,
            arguments=step.arguments,
            slots=slots,
            constants={},
            updates=[(i, r.replaces) for i, r in enumerate(step.results) if r.replaces is not None],
            kept=returned,
            fixed={i: tf.constant(v, traced.concrete.outputs[i].dtype) for i, v in lowered.fixed.items()},
            scalars=scalars,
            marker=min(sizes)[1] if sizes and not scalars else None,
            examples=examples,
            tokens=tokens,
            signature=", ".join(f"{a.path} {a.dtype}{list(a.shape)}" for a in step.arguments if a.role == "batch"),
        )

    def _run(self, program: Program, traced: XlaCall) -> Any:
        called_with = len(traced.flat)
        slots: list[Slot | None] = [self._slots.slot_of(t) for t in traced.flat] + program.slots
        leaves: list[Any] = []
        for index, (tensor, slot) in enumerate(zip((*traced.flat, *traced.captured), slots, strict=True)):
            if slot is not None:
                leaves.append(slot.value())
            elif index < called_with:
                leaves.append(_host(tensor))
            else:
                leaves.append(program.constants[index] if index in program.constants else _host(tensor))
        if not self._started:
            self._started = True
            self._observer.first_step(program.runner, leaves)
        start = time.perf_counter() if program.fresh else 0.0
        leaves = program.runner.place(leaves)
        results = program.runner(leaves)
        seconds = time.perf_counter() - start if program.fresh else None
        if program.fresh and tf_internals.captures_are_fixed(traced.concrete):
            program.constants = {
                i: _kept(leaves[i]) for i, slot in enumerate(slots) if slot is None and i >= called_with
            }
        written = set()
        for result, argument in program.updates:
            written.add(argument)
            slot = slots[argument]
            assert slot is not None
            slot.put(results[result])
        for index, slot in enumerate(slots):
            if slot is not None and slot.array is None and index not in written:
                slot.array = _kept(leaves[index])
        program.fresh = False
        self._observer.stepped(
            StepReport(
                outputs={path: results[index] for index, path in program.scalars},
                markers=() if program.marker is None else (results[program.marker],),
                examples=program.examples,
                tokens=program.tokens,
                compile_seconds=seconds,
                signature=program.signature,
            )
        )
        flat: list[Any] = [program.fixed.get(i) for i in range(len(program.kept) + len(program.fixed))]
        for index, place in enumerate(program.kept):
            flat[place] = LazyTensor(results[index])
        return tf_internals.pack_results(traced.concrete, flat)

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            logger.warning("`%s` runs on TensorFlow, not under the plan: %s", self._step.identity.name, why)


def _kept(leaf: Any) -> jax.Array:
    """What the next steps are given again: on a device, but bound to none if it was on the host."""
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)


def _host(tensor: Any) -> Any:
    """A tensor of TensorFlow's on its way to the devices, which copy it; one that is there already as it is."""
    return tensor.array if isinstance(tensor, LazyTensor) else np.asarray(tensor)
