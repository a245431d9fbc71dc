"""`Substitute`: the handler under which a running script's step is run as the plan says, and all else as it is.

The step is found again by its function's name and definition, and by the state it takes. It is traced once for each
signature: what runs is the program that the script has now, under the plan's shardings.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Protocol, cast

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from automap_launch.frontends.jit_hook import HookedFunction
from automap_launch.frontends.lowering import LoweredStep, flatten_call, lower_step, traced_keeping_unused
from automap_launch.train_step import Argument, Runner, TrainStep

_NUMPY = (np.ndarray, np.generic)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepReport:
    """What a dispatched step tells whoever measures.

    Attributes:
      outputs: scalar outputs by path, still being computed.
      markers: an array to wait for, where there is no scalar output.
      examples: rows of the batch. tokens: rows times sequence length of an integer input; None without one.
      compile_seconds: set for the first call of a signature. signature: its batch, for a person.
    """

    outputs: Mapping[str, Any]
    markers: tuple[Any, ...]
    examples: int | None
    tokens: int | None
    compile_seconds: float | None
    signature: str


class Observer(Protocol):
    """Takes part in what the substitute does.

    `first_step`: called with the runner and the flat arguments of the first call, before anything of it runs.
    `lowered`: each signature, before it is compiled (processes make sure here that they run the same program).
    `stepped`: after each dispatch.
    """

    def first_step(self, runner: Runner, leaves: Sequence[Any]) -> None: ...
    def lowered(self, lowered: LoweredStep) -> None: ...
    def stepped(self, report: StepReport) -> None: ...


Build = Callable[[bytes | Callable[..., Sequence[Any]], LoweredStep], Runner]


@dataclass
class _Compiled:
    """A signature. `described` are leaves' descriptions that were seen to be of it: compared by identity first."""

    runner: Runner
    out_tree: Any
    scalars: list[tuple[int, str]]
    marker: int | None
    examples: int | None
    tokens: int | None
    signature: str
    described: list[Any] = field(default_factory=list)
    fresh: bool = True


class Substitute:
    """Answers the calls of all jitted functions of a script.

    Args:
      step: the captured step.
      platform: to lower for.
      accepts: whether the arguments carry the captured state (`runtime.signatures.same_state`).
      build: makes a signature runnable, from its module, or from a traceable function where the step calls back
        into Python (a callback holds a function of this process, which no module can).
      observer: see `Observer`.
    """

    def __init__(
        self,
        step: TrainStep,
        platform: str,
        *,
        accepts: Callable[[Sequence[Argument]], bool],
        build: Build,
        observer: Observer,
    ) -> None:
        self._step = step
        self._platforms = tuple(dict.fromkeys(("cpu", platform)))
        self._platform = platform
        self._accepts = accepts
        self._build = build
        self._observer = observer
        self._signatures: dict[Hashable, _Compiled | None] = {}
        self._recent: list[tuple[Hashable, _Compiled]] = []
        self._started = False

    def __call__(self, function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function.identity != self._step.identity or jax.config.jax_disable_jit:
            return _run_as_is(function, args, kwargs)
        leaves, signature = flatten_call(function, args, kwargs)
        key = (_meant(function), function.cleared, jax.config.jax_enable_x64, signature)
        described = _describe(leaves)
        compiled = self._find(key, described)
        if compiled is None:
            compiled = self._enter(function, args, kwargs, key, described)
        if compiled is None:
            return _run_as_is(function, args, kwargs)
        try:
            return self._run(compiled, leaves)
        except FloatingPointError:
            if all(map(_can_be_read, leaves)):
                function.fun(*args, **kwargs)  # as JAX does (`jax_debug_nans`): one operation after the other
            raise

    def _find(self, key: Hashable, described: list[Any]) -> _Compiled | None:
        for seen, compiled in self._recent:
            if compiled.described == described and seen == key:
                return compiled
        return None

    def _enter(
        self,
        function: HookedFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Hashable,
        described: list[Any],
    ) -> _Compiled | None:
        """The signature of a call that looks new; None when the function is called with other state than captured."""
        signature = (key, tuple(map(_type_of, described)))
        if signature not in self._signatures:
            self._signatures[signature] = self._compile(function, args, kwargs)
        compiled = self._signatures[signature]
        if compiled is not None:
            compiled.described = described
            self._recent = [(key, compiled), *(r for r in self._recent if r[1] is not compiled)]
        return compiled

    def _compile(self, function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Compiled | None:
        args, kwargs = jax.tree.map(_without_place, (args, kwargs))
        lowered = lower_step(function, args, kwargs, self._platforms)
        if not self._accepts(lowered.arguments) or not self._returns_the_same(lowered):
            return None
        if not self._signatures and lowered.fingerprint != self._step.fingerprint:
            logger.warning(
                "the program of `%s` is not the one that was captured (a random constant, the time of day?): "
                "it runs as it is now, with the plan made for the captured one",
                self._step.identity.name,
            )
        self._observer.lowered(lowered)
        if lowered.has_callbacks:
            traced = traced_keeping_unused(function).trace(*args, **kwargs)
            runner = self._build(jaxpr_as_fun(traced.jaxpr), lowered)
        else:
            runner = self._build(lowered.modules[self._platform], lowered)
        examples, tokens = batch_size(runner.arguments, lowered.stacked)
        scalars = [
            (index, result.path)
            for index, result in enumerate(runner.results)
            if result.shape == () and result.replaces is None and not result.dtype.startswith("key<")
        ]
        return _Compiled(
            runner=runner,
            out_tree=lowered.out_tree,
            scalars=scalars,
            marker=None if scalars else _marker(runner),
            examples=examples,
            tokens=tokens,
            signature=", ".join(f"{a.path} {a.dtype}{list(a.shape)}" for a in runner.arguments if a.role == "batch"),
        )

    def _returns_the_same(self, lowered: LoweredStep) -> bool:
        """Whether it is the step by what it returns, and not another function of its name: an evaluation, say."""
        return [r.path for r in lowered.results] == [r.path for r in self._step.results]

    def _run(self, compiled: _Compiled, leaves: list[Any]) -> Any:
        if not self._started:
            self._started = True
            self._observer.first_step(compiled.runner, leaves)
        start = time.perf_counter() if compiled.fresh else 0.0
        results = compiled.runner(leaves)
        seconds = time.perf_counter() - start if compiled.fresh else None
        compiled.fresh = False
        self._observer.stepped(
            StepReport(
                outputs={path: results[index] for index, path in compiled.scalars},
                markers=() if compiled.marker is None else (results[compiled.marker],),
                examples=compiled.examples,
                tokens=compiled.tokens,
                compile_seconds=seconds,
                signature=compiled.signature,
            )
        )
        return jax.tree.unflatten(compiled.out_tree, results)


def _meant(function: HookedFunction) -> Hashable:
    """What JAX itself tells jitted functions apart by: two partials or methods of one definition are two programs."""
    try:
        hash(function.fun)
    except TypeError:
        return function
    return cast(Hashable, function.fun)


def batch_size(arguments: Sequence[Argument], stacked: Collection[int] = ()) -> tuple[int | None, int | None]:
    """Examples and tokens of a step: the commonest leading dim of its batch, and that times the sequence length of
    the first integer input [batch, sequence]; None where there is none.

    Args:
      stacked: arguments through which a loop goes slice by slice. They are stacks of batches, whose two leading dims
        count as one, if the slices have a leading dim in common; else each slice is an example.
    """
    shapes = [a.shape for i, a in enumerate(arguments) if i in stacked and a.role == "batch"]
    if len({shape[1:2] for shape in shapes}) == 1 and min(map(len, shapes)) > 1 and max(map(len, shapes)) > 2:
        arguments = [
            replace(a, shape=(a.shape[0] * a.shape[1], *a.shape[2:])) if i in stacked else a
            for i, a in enumerate(arguments)
        ]
    batch = [a for a in arguments if a.role == "batch" and a.shape]
    if not batch:
        return None, None
    examples = Counter(a.shape[0] for a in batch).most_common(1)[0][0]
    for argument in batch:
        integer = argument.dtype.startswith(("int", "uint"))
        if integer and len(argument.shape) == 2 and argument.shape[0] == examples and argument.shape[1] > 1:
            return examples, examples * argument.shape[1]
    return examples, None


def _run_as_is(function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any other function: JAX runs it on the sharded arrays it is given.

    JAX refuses to combine those with an array that is bound to one device; such arrays (a restored checkpoint, say)
    are freed from it first.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [(i, leaf) for i, leaf in enumerate(leaves) if _is_concrete(leaf)]
    spanning = {i for i, leaf in arrays if len(leaf.sharding.device_set) > 1}
    bound = [(i, leaf) for i, leaf in arrays if i not in spanning and leaf.committed]
    if not spanning or not bound:
        return function.jitted(*args, **kwargs)
    for index, leaf in bound:
        leaves[index] = _unbound(leaf)
    args, kwargs = jax.tree.unflatten(tree, leaves)
    return function.jitted(*args, **kwargs)


def _unbound(array: jax.Array) -> jax.Array:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = jax.numpy.asarray(np.asarray(jax.random.key_data(array)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    return jax.numpy.asarray(np.asarray(array))


def _without_place(leaf: Any) -> Any:
    """The description of an array that lies in a plan's sharding, which must not get into the traced program."""
    if not _is_concrete(leaf) or not leaf.committed:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))


def _can_be_read(leaf: Any) -> bool:
    """Whether this process alone can compute with it."""
    return not isinstance(leaf, jax.Array) or (leaf.is_fully_addressable and not leaf.is_deleted())


def _is_concrete(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)


def _describe(leaves: Sequence[Any]) -> list[Any]:
    """What tells the leaves' types: the very same objects for the results of one executable, so that comparing these
    lists, at every step, is mostly a comparison of identities.
    """
    described: list[Any] = list(map(getattr, leaves, repeat("aval"), repeat(None)))
    for index, aval in enumerate(described):
        if aval is None:
            leaf = leaves[index]
            described[index] = (leaf.shape, leaf.dtype) if isinstance(leaf, _NUMPY) else type(leaf)
    return described


def _type_of(described: Any) -> Hashable:
    """Shape, dtype, and whether the type is weak, as it is of a Python number."""
    if isinstance(described, type):
        return (), str(jax.dtypes.canonicalize_dtype(described)), True
    if isinstance(described, tuple):
        shape, dtype = described
        return tuple(shape), str(jax.dtypes.canonicalize_dtype(dtype)), False
    return tuple(described.shape), str(described.dtype), bool(getattr(described, "weak_type", False))


def _marker(runner: Runner) -> int | None:
    """The smallest result that is not donated to the next step."""
    kept = [
        (int(np.prod(result.shape)), index)
        for index, result in enumerate(runner.results)
        if result.replaces is None or not runner.arguments[result.replaces].donated
    ]
    return min(kept)[1] if kept else None
