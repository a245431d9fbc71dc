"""Where a variable's value is: with TensorFlow, on JAX's devices, or in both places.

Each variable that a running step uses has a slot. The step takes the value from the slot and leaves the new one
there. TensorFlow is told nothing of it until something on its side looks: its own functions, eager reads and
writes, checkpoints. All of these pass by one of three places: the variable's handle, its read, or the run of a graph.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from automap_launch.frontends.tensorflow import tf_internals
from automap_launch.frontends.tensorflow.lazy_tensor import LazyTensor


class Slot:
    """The value of one variable; several variable objects may share it (and its handle).

    Attributes:
      handle: TensorFlow's; the slot lives no longer than those that hold it: the variable, and programs that use it.
      dtype: the variable's.
      array: the value on JAX's devices; None: TensorFlow alone has it.
      ahead: `array` is newer than what TensorFlow has.
    """

    __slots__ = ("__weakref__", "ahead", "array", "dtype", "handle")

    def __init__(self, handle: Any, dtype: Any) -> None:
        self.handle = handle
        self.dtype = dtype
        self.array: jax.Array | None = None
        self.ahead = False

    def value(self) -> Any:
        """The current value: a JAX array if there is one, else a numpy array of its own."""
        return tf_internals.read(self.handle, self.dtype) if self.array is None else self.array

    def put(self, array: jax.Array) -> None:
        """Takes the value that a step made."""
        self.array = array
        self.ahead = True

    def bring_home(self) -> None:
        """Lets TensorFlow have the current value. A collective where the array spans processes."""
        if self.ahead:
            # A copy: TensorFlow keeps what it is given, and a later step may be given the array's memory.
            tf_internals.write(self.handle, np.array(self.array), self.dtype)
            self.ahead = False

    def let_go(self) -> None:
        """TensorFlow may write to the variable from now on: what JAX has does not count any more."""
        self.bring_home()
        self.array = None


class SlotTable:
    """Slots by the handles of their variables, and the hooks that keep both sides coherent."""

    def __init__(self) -> None:
        self._by_handle: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
        self._reading = threading.local()

    def install(self) -> None:
        """Puts the hooks in place; there is no way back."""
        tf_internals.hook_variables(self._on_handle, self._on_read, self._on_new)
        tf_internals.hook_concrete_calls(self._before_graph)

    def slot(self, handle: Any, dtype: Any) -> Slot:
        """The slot of a handle, made when there is none. Whoever asks keeps it alive."""
        found = self._by_handle.get(id(handle))
        if found is None:
            found = self._by_handle[id(handle)] = Slot(handle, dtype)
        return found

    def find(self, handle: Any) -> Slot | None:
        return self._by_handle.get(id(handle))

    def slot_of(self, tensor: Any) -> Slot | None:
        """The slot of a variable that a function is given as an argument; None for an ordinary tensor."""
        if tensor.dtype != tf.resource:
            return None
        return self.slot(tensor, tf_internals.dtype_of_handle(tensor))

    def adopt(self, variable: Any) -> Slot:
        """The slot of a variable, which keeps it alive."""
        slot = self.slot(tf_internals.raw_handle(variable), variable.dtype)
        variable.__dict__["_automap_slot"] = slot
        return slot

    # What the hooks call

    def _on_new(self, variable: Any, handle: Any) -> None:
        found = self._by_handle.get(id(handle))
        if found is not None:
            variable.__dict__["_automap_slot"] = found

    def _on_handle(self, variable: Any) -> None:
        slot = self.find(tf_internals.raw_handle(variable))
        if slot is None or slot.array is None:
            return
        if self._is_being_read(slot):
            slot.bring_home()
        else:
            slot.let_go()

    def _is_being_read(self, slot: Slot) -> bool:
        return getattr(self._reading, "slot", None) is slot

    @contextlib.contextmanager
    def _on_read(self, variable: Any) -> Iterator[None]:
        before = getattr(self._reading, "slot", None)
        self._reading.slot = self.find(tf_internals.raw_handle(variable))
        try:
            yield
        finally:
            self._reading.slot = before

    def _before_graph(self, concrete: Any, flat: list[Any], captured: list[Any]) -> list[Any]:
        for index, tensor in enumerate((*flat, *captured)):
            slot = self._by_handle.get(id(tensor))
            if slot is None or slot.array is None:
                continue
            if index in _written(concrete):
                slot.let_go()
            else:
                slot.bring_home()
        return materialized(flat)


def materialized(tensors: Sequence[Any]) -> list[Any]:
    """The tensors, those that are still to be read from JAX's devices as TensorFlow's own."""
    return [t.eager if isinstance(t, LazyTensor) else t for t in tensors]


def _written(concrete: Any) -> frozenset[int]:
    found: frozenset[int] | None = concrete.__dict__.get("_automap_written")
    if found is None:
        found = concrete._automap_written = tf_internals.written_inputs(concrete)
    return found
