"""The jitted functions that a script calls, and what is known of each."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from automap_launch.frontends.deferred import Deferred, is_deferred, node_of
from automap_launch.frontends.jit_hook import HookedFunction
from automap_launch.frontends.libraries import is_equinox, unwrap
from automap_launch.frontends.recording import Node, ancestors
from automap_launch.frontends.step_evidence import StepEvidence
from automap_launch.train_step import Argument, Result, SourceLine, StepIdentity


@dataclass(eq=False)
class Call:
    """One recorded call of a function; it is the tag of the node that its results come from.

    Attributes:
      leaves: flat dynamic arguments, in the module's order.
      arguments, results: their description; roles and `replaces` are not decided yet.
      matched: result -> argument of the same place by structure.
      line: where the script makes the call.
    """

    function: SeenFunction
    hooked: HookedFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    evidence: StepEvidence
    matched: dict[int, int]
    line: SourceLine | None

    @property
    def may_be_step(self) -> bool:
        """Takes gradients and returns something of the shape of what it was given."""
        return self.evidence.differentiates and bool(self.matched)

    def again(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Call:
        """The same function called with other arguments of the same signature."""
        return dataclasses.replace(self, args=args, kwargs=kwargs, leaves=leaves)

    def bytes_of(self, arguments: set[int]) -> int:
        """Bytes of those of `arguments` that hold floating-point numbers."""
        return sum(_float_bytes(self.leaves[i]) for i in arguments)


@dataclass(eq=False)
class SeenFunction:
    """A jitted function and its calls.

    Attributes:
      count: number of calls.
      last: its last recorded call; None while it runs as usual.
      proof: two successive calls, the second of which received results of the first.
      proven_at: `count` and monotonic time when that happened.
    """

    identity: StepIdentity
    fun: Any
    count: int = 0
    last: Call | None = None
    proof: tuple[Call, Call] | None = None
    proven_at: tuple[int, float] | None = None
    keep_alive: list[Any] = field(default_factory=list)

    @property
    def may_be_step(self) -> bool:
        return self.last is not None and self.last.may_be_step

    def __str__(self) -> str:
        where = f" ({self.identity.source})" if self.identity.source else ""
        return f"`{self.identity.name}`{where}"


def function_key(function: HookedFunction, args: tuple[Any, ...]) -> Hashable:
    """Equal for the same user function jitted twice, different for two partials or methods of two objects."""
    parts: list[Hashable] = []
    fun: Any = function.fun
    if is_equinox(fun):
        return (id(fun), function.identity.name, str(function.identity.source))
    while isinstance(fun, (functools.partial, types.MethodType)):
        if isinstance(fun, functools.partial):
            parts += [id(value) for value in (*fun.args, *fun.keywords.values())]
            fun = fun.func
        else:
            parts.append(id(fun.__self__))
            fun = fun.__func__
    return (id(unwrap(fun)), *parts)


def unmoved(value: Any) -> Any:
    """The value before it was merely moved or copied."""
    while (node := node_of(value)) is not None and node.moves:
        value = node.inputs[value.index]
    return value


def same_array(one: Any, other: Any) -> bool:
    """Whether both are the very same array, at most moved."""
    one, other = (v.made if isinstance(v, Deferred) and v.made is not None else v for v in map(unmoved, (one, other)))
    return one is other


def result_of(value: Any) -> tuple[Call, int] | None:
    """The recorded call that `value` is a result of, and which; None when it is none."""
    value = unmoved(value)
    if isinstance(value, Deferred) and isinstance(value.node.tag, Call):
        return value.node.tag, value.index
    return None


def take_turns(functions: Sequence[SeenFunction]) -> bool:
    """Whether all are of one definition and update the same state in turn, as for several tasks of one model.

    Each receives what another returned as the new value of that very argument. Adversaries made by one factory
    receive each other's parameters, too, but in another place.
    """
    if any(function.identity != functions[0].identity for function in functions):
        return False
    linked: set[SeenFunction] = set()
    for function in functions:
        for i, leaf in enumerate(function.last.leaves if function.last is not None else ()):
            found = result_of(leaf)
            giver = found[0].function if found is not None and found[0].matched.get(found[1]) == i else function
            if giver is not function:
                linked |= {function, giver}
    return linked.issuperset(functions)


def history(value: Any) -> list[Node]:
    """The recorded operations that `value` depends on."""
    return ancestors([value], node_of) if is_deferred(value) else []


def calls_in(nodes: list[Node]) -> list[Call]:
    """The recorded calls of jitted functions among `nodes`."""
    return [node.tag for node in nodes if isinstance(node.tag, Call)]


def _float_bytes(leaf: Any) -> int:
    dtype = getattr(leaf, "dtype", None)
    if isinstance(leaf, float):
        return 4
    return int(leaf.size) * int(dtype.itemsize) if dtype is not None and "float" in str(dtype) else 0
