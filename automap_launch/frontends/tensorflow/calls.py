"""Calls of `tf.function`s, as the hooks hand them on, and their graphs for XLA."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from automap_launch.frontends.libraries import identity_of
from automap_launch.frontends.tensorflow import refusals, tf_internals
from automap_launch.frontends.tensorflow.random_draws import own_draws
from automap_launch.train_step import StepIdentity

_IDENTITY = "_automap_identity"
_TWINS = "_automap_twins"


@dataclass(frozen=True)
class Call:
    """One eager call of a `tf.function` by the script, or by Keras for it.

    Attributes:
      function: the `tf.function`.
      run_as_is: runs the call on TensorFlow.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run_as_is: Callable[[], Any]

    @functools.cached_property
    def identity(self) -> StepIdentity:
        """Name and place of the user's function."""
        return identity(self.function)


@dataclass(frozen=True)
class XlaCall:
    """A call's graph for XLA and the tensors to run it on: `flat` of the call, `captured` by the graph."""

    concrete: Any
    flat: list[Any]
    captured: list[Any]


def install(handler: Callable[[Call], Any]) -> None:
    """Has `handler` answer every eager call of a `tf.function`."""
    tf_internals.hook_calls(lambda function, args, kwargs, run_as_is: handler(Call(function, args, kwargs, run_as_is)))


def identity(function: Any) -> StepIdentity:
    """Name and place of the user's function behind a `tf.function`."""
    found: StepIdentity | None = function.__dict__.get(_IDENTITY)
    if found is None:
        found = identity_of(function.python_function)
        name_as(function, found)
    return found


def name_as(function: Any, found: StepIdentity) -> None:
    """Lets `found` be the identity of a `tf.function` that stands for a function of the user's."""
    setattr(function, _IDENTITY, found)


def for_xla(call: Call) -> XlaCall:
    """Traces the call for XLA, or finds the trace of an earlier call of its types.

    A data set's iterator among the arguments is no matter for accelerators: its next batch is taken here, and is an
    argument of the graph instead.

    Raises:
      StopIteration: the iterator is at its end.
      CaptureError: the function takes more than one batch from it.
    """
    places = [i for i, a in enumerate(call.args) if isinstance(a, tf_internals.Iterator_)]
    twins = call.function.__dict__.setdefault(_TWINS, {})
    twin = twins.get(tuple(places))
    if twin is None:
        made = _taking_batches(call.function, places) if places else None
        twin = twins[tuple(places)] = tf_internals.xla_twin(call.function, made)
    args = call.args
    if places:
        batches = tuple(_next_batch(args[i]) for i in places)
        args = (batches, *(a for i, a in enumerate(args) if i not in places))
    with own_draws():
        concrete = tf_internals.trace(twin, args, call.kwargs)
    return XlaCall(concrete, tf_internals.flat_arguments(concrete, args, call.kwargs), concrete.captured_inputs)


def run_on_tensorflow(call: Call, traced: XlaCall) -> Any:
    """Runs the call on TensorFlow, with the batch that was taken from its iterator, if there was one."""
    if any(isinstance(a, tf_internals.Iterator_) for a in call.args):
        return tf_internals.run(traced.concrete, traced.flat, traced.captured)
    return call.run_as_is()


def _next_batch(iterator: Any) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        # As TensorFlow itself ends a function that runs out of data.
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None


class _OneBatch:
    """Stands for an iterator inside a trace: it gives the batch that was taken before the call."""

    def __init__(self, function: Any, batch: Any) -> None:
        self._function = function
        self._batch = [batch]

    def __iter__(self) -> _OneBatch:
        return self

    def __next__(self) -> Any:
        if not self._batch:
            raise refusals.two_batches(self._function)
        return self._batch.pop()

    get_next = __next__

    def __getattr__(self, name: str) -> Any:
        raise refusals.two_batches(self._function)

    @property
    def taken(self) -> bool:
        return not self._batch


def _taking_batches(function: Any, places: list[int]) -> Callable[..., Any]:
    """`function`'s definition with batches, all in the first argument, in place of iterators."""
    definition = tf_internals.converted(function)

    @tf_internals.not_converted
    def step(batch: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        stand_ins = [_OneBatch(function, b) for b in batch]
        for place, stand_in in zip(places, stand_ins, strict=True):
            given.insert(place, stand_in)
        result = definition(*given, **kwargs)
        if not all(stand_in.taken for stand_in in stand_ins):
            raise refusals.two_batches(function)
        return result

    step.__name__ = getattr(inspect.unwrap(function.python_function), "__name__", "step")
    return step
