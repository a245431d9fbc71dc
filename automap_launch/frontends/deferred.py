"""Arrays that are described but not made: capturing and creating models larger than any one device.

A `DeferredTrace` is JAX's current trace while the script runs. An operation whose result is above a size, or that uses
such a result, is evaluated abstractly and recorded. `materialize` replays what was recorded inside one jit, straight
into shardings, so the whole never exists on one device. Jitted and eager code are treated alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from automap_launch.frontends import jax_internals
from automap_launch.frontends.jit_hook import real_jit
from automap_launch.frontends.recording import Node, ancestors, aval_bytes, replay

# Arrays of more elements are shown without their values.
_SHOWN_ELEMENTS = 1000
# Once this many times the limit has been made of arrays below it, those above a fraction of it are recorded as well:
# a model of many arrays of medium size would otherwise be made piece by piece. What was made until then comes on top of
# a device's share of the state.
_MADE_LIMITS = 4
_LATER_FRACTION = 64


class Deferred(jax_internals.Tracer):  # type: ignore[misc]  # JAX is untyped
    """An array that was recorded. Once made, it stands for the array that was made."""

    __slots__ = ("index", "made", "node")

    node: Node
    index: int
    made: Any

    def __init__(self, trace: DeferredTrace, aval: Any, node: Node, index: int) -> None:
        super().__init__(trace, aval)
        self.node = node
        self.index = index
        self.made = None

    def read(self) -> Any:
        """The concrete array; asks the trace's `on_read` when it has not been made."""
        if self.made is not None:
            return self.made
        return self._trace.on_read(self)

    def settle(self, array: Any) -> None:
        """`array` is the value from now on; what was recorded for it is let go."""
        self.made = array
        self.node = Node(self.node.primitive, [], {}, self.node.avals, self.node.tag)

    # What JAX asks of a tracer.
    def full_lower(self) -> Any:
        if self.made is None and not self._trace.running:
            return self.read()
        return self if self.made is None else self.made

    def to_concrete_value(self) -> Any:
        return self.made

    # Reading the numbers.
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.read(), dtype=dtype)

    @property
    def _value(self) -> Any:
        return np.asarray(self.read())

    def __bool__(self) -> bool:
        return bool(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __float__(self) -> float:
        return float(self.read())

    def __complex__(self) -> complex:
        return complex(self.read())

    def __index__(self) -> int:
        return int(self.read().__index__())

    def item(self, *args: int) -> Any:
        return np.asarray(self.read()).item(*args)

    def tolist(self) -> Any:
        return np.asarray(self.read()).tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        return np.asarray(self.read()).tobytes(order)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return self.read().__dlpack__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        value: tuple[Any, ...] = jax.numpy.asarray(self.read()).__reduce__()
        return value

    def __copy__(self) -> Deferred:
        return self

    def __deepcopy__(self, memo: Any) -> Deferred:
        return self

    def __format__(self, spec: str) -> str:
        return format(np.asarray(self.read())[()], spec) if self.ndim == 0 else format(str(self), spec)

    def __repr__(self) -> str:
        if self.size > _SHOWN_ELEMENTS:
            return f"Array(shape={self.shape}, dtype={self.dtype})"
        return repr(self.read())

    def __str__(self) -> str:
        return repr(self) if self.size > _SHOWN_ELEMENTS else str(self.read())

    # Where it is and whether it is ready: as an array on the one device that the script sees.
    def block_until_ready(self) -> Any:
        return self if self.made is None else self.made.block_until_ready()

    def copy_to_host_async(self) -> None:
        return None

    def is_ready(self) -> bool:
        return True

    def is_deleted(self) -> bool:
        return False

    def delete(self) -> None:
        return None

    @property
    def sharding(self) -> Any:
        if self.made is not None:
            return self.made.sharding
        return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    @property
    def device(self) -> Any:
        return jax.local_devices()[0]

    def devices(self) -> set[Any]:
        return {self.device}

    @property
    def committed(self) -> bool:
        return False

    @property
    def is_fully_addressable(self) -> bool:
        return True

    @property
    def is_fully_replicated(self) -> bool:
        return True

    @property
    def addressable_shards(self) -> Any:
        return self.read().addressable_shards

    def addressable_data(self, index: int) -> Any:
        return self.read().addressable_data(index)

    def on_device_size_in_bytes(self) -> int:
        return aval_bytes(self.aval)


def is_deferred(value: Any) -> bool:
    """Whether `value` is described but not made."""
    return isinstance(value, Deferred) and value.made is None


def node_of(value: Any) -> Node | None:
    """How a deferred value comes about; None for a concrete one."""
    return value.node if isinstance(value, Deferred) and value.made is None else None


class DeferredTrace(jax_internals.EvalTrace):  # type: ignore[misc]  # JAX is untyped
    """Evaluates as JAX does, except what is too large, which it records.

    Args:
      limit_bytes: an operation whose results are larger, together, is recorded; a smaller size counts once many
        arrays below it were made.
      on_read: gives the value of a deferred array that is read; by default it is made, on the default device.
    """

    def __init__(self, limit_bytes: int, on_read: Callable[[Deferred], Any] | None = None) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.on_read = on_read or _make
        self.running = False
        self._tag: Any = None
        self._made_bytes = 0

    def start(self) -> None:
        """Becomes the trace under which all threads evaluate."""
        self.running = True
        jax_internals.set_base_trace(self)

    def stop(self) -> None:
        """Gives eager evaluation back to JAX. Deferred arrays that are used afterwards are read first."""
        self.running = False
        jax_internals.set_base_trace(None)

    def __enter__(self) -> DeferredTrace:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def deferring(self, tag: Any) -> Iterator[None]:
        """The next operation, a call of a jitted function, is recorded whatever its size, under `tag`."""
        self._tag = tag
        try:
            yield
        finally:
            self._tag = None

    def process_primitive(self, primitive: Any, args: Any, params: dict[str, Any], /) -> Any:
        tag, self._tag = self._tag, None
        inputs = [a.full_lower() if isinstance(a, Deferred) else a for a in args]
        abstract = tag is not None or any(isinstance(a, Deferred) for a in inputs)
        try:
            made, _ = primitive.abstract_eval(*map(jax_internals.typeof, inputs), **params)
        except NotImplementedError:
            if abstract:
                raise
            return super().process_primitive(primitive, inputs, params)
        avals = list(made) if primitive.multiple_results else [made]
        size = sum(map(aval_bytes, avals))
        if not abstract and size <= self._limit_now():
            self._made_bytes += size
            if any(params.get("donated_invars", ())):
                # What was recorded may still need them.
                params = {**params, "donated_invars": (False,) * len(inputs)}
            return super().process_primitive(primitive, inputs, params)
        # The script may fill a numpy array again before this is made: its values are those of now.
        inputs = [np.array(a) if isinstance(a, np.ndarray) else a for a in inputs]
        node = Node(primitive, inputs, params, avals, tag)
        outputs = [Deferred(self, aval, node, index) for index, aval in enumerate(avals)]
        return outputs if primitive.multiple_results else outputs[0]

    def _limit_now(self) -> int:
        many = self._made_bytes > _MADE_LIMITS * self.limit_bytes
        return self.limit_bytes // _LATER_FRACTION if many else self.limit_bytes

    def process_call(self, primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:
        with jax_internals.set_current_trace(self):
            return f.call_wrapped(*tracers)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **_: Any) -> Any:
        with jax_internals.set_current_trace(self):
            return fun.call_wrapped(*tracers)

    def process_custom_vjp_call(self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **_: Any) -> Any:
        with jax_internals.set_current_trace(self):
            return fun.call_wrapped(*tracers)


jax_internals.register_top_level_trace(DeferredTrace)


def materialize(values: Sequence[Any], shardings: Sequence[Any] | None = None) -> list[jax.Array]:
    """Makes `values`, each in its sharding; all that was recorded is replayed in one jit.

    Args:
      values: deferred arrays; concrete ones among them are moved to their shardings.
      shardings: one a value; None: the default device. On several processes each calls with the same values.

    Returns:
      The arrays. Every deferred value stands for its array from now on.
    """
    targets = list(shardings) if shardings is not None else [None] * len(values)
    arrays: list[Any] = [None] * len(values)
    recorded: list[int] = []
    for position, (value, sharding) in enumerate(zip(values, targets, strict=True)):
        source = _unmoved(value)
        if node_of(source) is None and not jax.dtypes.issubdtype(source.dtype, jax.dtypes.prng_key):
            arrays[position] = _place(source, sharding)
        else:
            recorded.append(position)
    if recorded:
        made = evaluate([values[p] for p in recorded], [targets[p] for p in recorded])
        for position, array in zip(recorded, made, strict=True):
            arrays[position] = array
    for value, array in zip(values, arrays, strict=True):
        if is_deferred(value):
            value.settle(array)
    return arrays


def evaluate(
    values: Sequence[Any],
    shardings: Sequence[Any] | None = None,
    substitute: Callable[[Node], list[Any] | None] = lambda node: None,
) -> list[jax.Array]:
    """Replays what was recorded for `values` in one jit, settling nothing.

    Args:
      shardings: as for `materialize`.
      substitute: see `recording.replay`.
    """
    nodes = ancestors(values, node_of)
    concrete: dict[int, Any] = {}
    for node in nodes:
        for item in node.inputs:
            if node_of(item) is None and isinstance(item, (jax.Array, np.ndarray)):
                concrete[id(item)] = item
    for value in values:
        if node_of(value) is None:
            concrete[id(value)] = value
    slots = {key: slot for slot, key in enumerate(concrete)}
    keys = [_is_key(array) for array in concrete.values()]

    def run(leaves: list[Any]) -> list[Any]:
        whole = [jax.random.wrap_key_data(x, impl=k) if k else x for x, k in zip(leaves, keys, strict=True)]

        def read(value: Any, results: dict[int, list[Any]]) -> Any:
            node = node_of(value)
            if node is not None:
                return results[id(node)][value.index]
            return whole[slots[id(value)]] if id(value) in slots else value

        return replay(nodes, values, read, substitute)

    with jax_internals.evaluating():
        # As host arrays, since those of a single process's device could not meet a mesh of several processes.
        leaves = [_host(array) for array in concrete.values()]
        options = {} if shardings is None or all(s is None for s in shardings) else {"out_shardings": list(shardings)}
        return list(real_jit()(run, **options)(leaves))


def _make(value: Deferred) -> Any:
    return materialize([value])[0]


def _unmoved(value: Any) -> Any:
    """`value` before it was merely moved or copied."""
    while (node := node_of(value)) is not None and node.moves:
        value = node.inputs[value.index]
    return value if node_of(value) is not None else _concrete(value)


def _concrete(value: Any) -> Any:
    return value.made if isinstance(value, Deferred) else value


def _is_key(array: Any) -> Any:
    """The implementation of a typed PRNG key array, None for ordinary arrays."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_impl(_concrete(array))
    return None


def _host(array: Any) -> np.ndarray[Any, Any]:
    array = _concrete(array)
    return np.asarray(jax.random.key_data(array) if _is_key(array) else array)


def _place(array: Any, sharding: Any) -> jax.Array:
    with jax_internals.evaluating():
        if sharding is None:
            return jax.numpy.asarray(array)
        if isinstance(array, jax.Array) and array.sharding == sharding:
            return array
        host = np.asarray(array)
        dtype = jax.dtypes.canonicalize_dtype(host.dtype)
        cut = lambda index: host[index].astype(dtype, copy=False)  # noqa: E731
        # A process that has no device of the sharding never calls back, and could not tell the dtype from that.
        return jax.make_array_from_callback(host.shape, sharding, cut, dtype=dtype)
