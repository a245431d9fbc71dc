"""Finding the train step among the `tf.function`s that a script calls.

A variable is an object, so one trace shows what a function carries from call to call: the variables that it writes.
The step is a function that takes gradients and writes trainable variables. It is lowered, not run: the script is
given harmless numbers and goes on, in case a second step comes that trains something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from automap_launch.errors import CaptureError
from automap_launch.frontends.source_lines import current_line, is_users
from automap_launch.frontends.tensorflow import calls, refusals, tf_internals
from automap_launch.frontends.tensorflow.calls import Call, XlaCall
from automap_launch.frontends.tensorflow.lowering import LoweredGraph, lower_graph
from automap_launch.train_step import StepIdentity

LOOK_AHEAD_CALLS = 5
LOOK_AHEAD_SECONDS = 2.0
# A function without gradients inside is the step only if it was called this often and none with gradients came.
WEAK_CALLS = 5

# What TensorFlow calls the operations that take gradients.
_GRADIENTS = ("gradient_tape/", "gradients/")


@dataclass(eq=False)
class SeenFunction:
    """A `tf.function` and what is known of it.

    Attributes:
      differentiates: takes gradients. trains: writes trainable variables of floating-point numbers.
      takes_tensors: is given tensors that are no variables.
      lowered: by the description of its arguments; `calls_of` counts the calls of each.
    """

    function: Any
    identity: StepIdentity
    differentiates: bool = False
    trains: bool = False
    takes_tensors: bool = False
    count: int = 0
    first: float = 0.0
    lowered: dict[Any, LoweredGraph] = field(default_factory=dict)
    calls_of: dict[Any, int] = field(default_factory=dict)

    @property
    def may_be_step(self) -> bool:
        return self.differentiates and self.trains

    @property
    def usual(self) -> LoweredGraph:
        """Of the signature that was called most often, the latest of those."""
        best = max(reversed(self.lowered), key=lambda key: self.calls_of[key])
        return self.lowered[best]

    def __str__(self) -> str:
        return f"    {refusals.described(self.identity)}: {self.count} call{'s' if self.count != 1 else ''}"


class StepDetector:
    """Watches the calls of `tf.function`s.

    Args:
      accept: called with the step's function and its module; must not return.
      refuse: called with what keeps the step from being captured; must not return.
      step_name: `frontend.step`: the one function that is acceptable; None: any.
    """

    def __init__(
        self,
        accept: Callable[[StepIdentity, LoweredGraph], NoReturn],
        refuse: Callable[[CaptureError], NoReturn],
        step_name: str | None = None,
    ) -> None:
        self.accept = accept
        self.refuse = refuse
        self.step_name = step_name
        self.functions: dict[int, SeenFunction] = {}
        self._in_data_sets: dict[int, Any] = {}

    @property
    def trained(self) -> bool:
        """Whether the script called a function of TensorFlow that may have been meant as its step."""
        return any(f.trains or f.differentiates for f in self.functions.values())

    def on_strategy(self) -> None:
        """The script makes a `tf.distribute` strategy."""
        self.refuse(refusals.strategy(current_line()))

    def on_eager_fit(self) -> None:
        """Keras is to train without compiling anything."""
        self.refuse(refusals.run_eagerly(current_line(), "the model was compiled with run_eagerly=True"))

    def on_data_set(self, tensor: Any) -> None:
        """A data set's function captures `tensor`."""
        if tensor.dtype == tf.resource:
            self._in_data_sets[id(tensor)] = tensor

    def on_call(self, call: Call) -> Any:
        """The handler of the hook."""
        seen = self._seen(call)
        seen.count += 1
        recorded = seen.may_be_step if self.step_name is None else self._is_named(seen) and seen.trains
        if recorded:
            return self._record(seen, call)
        self._decide_if_certain()
        return call.run_as_is()

    def _seen(self, call: Call) -> SeenFunction:
        key = id(call.function)
        seen = self.functions.get(key)
        if seen is None:
            seen = self.functions[key] = SeenFunction(call.function, call.identity, first=time.monotonic())
        if seen.may_be_step:
            return seen
        concrete = tf_internals.trace(call.function, call.args, call.kwargs)
        written = tf_internals.written_inputs(concrete)
        variables = {id(tf_internals.raw_handle(v)): v for v in concrete.graph.variables}
        captured = concrete.captured_inputs
        called_with = len(concrete.inputs) - len(captured)
        found = [variables.get(id(captured[i - called_with])) for i in written if i >= called_with]
        # A variable that is an argument is not among the graph's own.
        found += [a for a in tf.nest.flatten((call.args, call.kwargs)) if _is_written_argument(a, written)]
        seen.trains |= any(v is not None and v.trainable and v.dtype.is_floating for v in found)
        seen.takes_tensors |= any(t.dtype != tf.resource for t in concrete.inputs[:called_with]) or any(
            isinstance(a, tf_internals.Iterator_) for a in call.args
        )
        seen.differentiates |= any(
            operation.name.startswith(_GRADIENTS) or f"/{_GRADIENTS[0]}" in operation.name
            for graph in tf_internals.graphs(concrete.graph)
            for operation in graph.get_operations()
        )
        return seen

    def _record(self, seen: SeenFunction, call: Call) -> Any:
        try:
            traced = calls.for_xla(call)
            self._check_data_sets(call, traced)
            key = (id(traced.concrete), tuple(tuple(t.shape) for t in traced.flat))
            if key not in seen.lowered:
                seen.lowered[key] = lower_graph(call.function, traced.concrete, traced.flat, traced.captured)
        except CaptureError as error:
            self.refuse(error)
        seen.calls_of[key] = seen.calls_of.get(key, 0) + 1
        self._decide_if_certain()
        return tf_internals.pack_results(traced.concrete, stand_ins(seen.lowered[key], traced.concrete))

    def _check_data_sets(self, call: Call, traced: XlaCall) -> None:
        """Data sets run in native code, which reads a variable where TensorFlow has it: not what a step made of it."""
        called_with = len(traced.flat)
        for index in tf_internals.written_inputs(traced.concrete):
            if index >= called_with and id(traced.captured[index - called_with]) in self._in_data_sets:
                raise refusals.read_by_data_set(call.function)

    def _is_named(self, seen: SeenFunction) -> bool:
        name = seen.identity.name
        return self.step_name is not None and (
            name == self.step_name or name.rpartition(".")[2] == self.step_name or name.endswith("." + self.step_name)
        )

    def _decide_if_certain(self) -> None:
        steps = [f for f in self.functions.values() if f.lowered]
        if len({f.identity for f in steps}) > 1:
            self.refuse(refusals.several_steps([f.identity for f in steps], self._listed()))
        for step in steps:
            called = sum(step.calls_of.values())
            # Not at the first call, however long its tracing took: another step may stand beside this one.
            late = called > 1 and time.monotonic() - step.first > LOOK_AHEAD_SECONDS
            if called >= LOOK_AHEAD_CALLS or late:
                self.accept(step.identity, step.usual)

    def decide(self) -> NoReturn:
        """The script has ended: decides with what is known."""
        functions = list(self.functions.values())
        steps = [f for f in functions if f.lowered]
        if steps:
            self.accept(steps[0].identity, steps[0].usual)
        if self.step_name is not None:
            self.refuse(refusals.unknown_name(self.step_name, self._listed()))
        weak = [f for f in functions if f.trains and f.takes_tensors and f.count >= WEAK_CALLS]
        gradients = [f for f in functions if f.differentiates and not f.trains and _is_own(f)]
        if gradients:
            self.refuse(refusals.split_step(gradients[0].identity))
        if len(weak) == 1:
            self.refuse(refusals.without_gradients(weak[0].identity))
        if tf_internals.functions_run_eagerly():
            self.refuse(refusals.run_eagerly(None, "the script calls tf.config.run_functions_eagerly(True)"))
        self.refuse(refusals.no_step(self._listed()))

    def _listed(self) -> list[str]:
        own = [f for f in self.functions.values() if _is_own(f)]
        return [str(f) for f in own or self.functions.values()]


def stand_ins(lowered: LoweredGraph, concrete: Any) -> list[Any]:
    """Harmless values for what the step returns: 0.5 as a loss or an accuracy, 1 as a count, False."""
    found = iter(lowered.results[: lowered.returned])
    values = []
    for index, output in enumerate(concrete.outputs):
        if index in lowered.fixed:
            values.append(tf.constant(lowered.fixed[index], dtype=output.dtype))
            continue
        result = next(found)
        value = False if output.dtype.is_bool else 1 if output.dtype.is_integer else 0.5
        values.append(tf.constant(np.full(result.shape, value), dtype=output.dtype))
    return values


def _is_written_argument(value: Any, written: frozenset[int]) -> bool:
    return bool(written) and isinstance(value, tf_internals.Variable)


def _is_own(seen: SeenFunction) -> bool:
    source = seen.identity.source
    return source is None or is_users(source.file)
