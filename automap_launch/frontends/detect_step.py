"""Finding the train step among the jitted functions that a script calls.

A function that takes gradients and returns arrays like those it was given may be the step. It is recorded, not run:
its results are abstract, and the script goes on. The step is *proven* when a later call receives results of an
earlier one. What keeps functions that look alike apart:

- gradients alone (`jit(value_and_grad(loss))`): the next call does not receive the results, but parameters that were
  computed from them outside. Refused, naming the functions to join.
- functions that carry state but take no gradients (moving averages, separate updates, metrics): never the step while
  a function that takes gradients is about; the step by itself only if there is none (hand-written gradients).
- two proven steps (adversarial training): refused, naming both; one definition that updates the same state for
  several tasks in turn is one step.
- a loop over many steps inside one jit, called once: refused.

When the script reads a number that depends on a recorded call, it is given a stand-in, and goes on to the next call.
If there is none, the decision is by structure: see `step_evidence`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, NoReturn

import jax
import numpy as np

from automap_launch.errors import CaptureError
from automap_launch.frontends import jax_internals, refusals
from automap_launch.frontends.deferred import Deferred, DeferredTrace, evaluate, is_deferred, materialize
from automap_launch.frontends.functions_seen import (
    Call,
    SeenFunction,
    calls_in,
    function_key,
    history,
    result_of,
    same_array,
    take_turns,
    unmoved,
)
from automap_launch.frontends.jit_hook import HookedFunction
from automap_launch.frontends.lowering import describe_call
from automap_launch.frontends.matching import match_by_structure
from automap_launch.frontends.recording import Node, aval_bytes
from automap_launch.frontends.source_lines import current_line
from automap_launch.frontends.step_evidence import evidence
from automap_launch.train_step import SourceLine, StepIdentity

# After the proof the script goes on for a moment, in case a second step comes that trains something else.
LOOK_AHEAD_CALLS = 5
LOOK_AHEAD_SECONDS = 2.0
# A function without gradients inside is the step only if it was called this often and none with gradients came.
WEAK_CALLS = 5


class StepDetector:
    """Watches the calls of jitted functions.

    Args:
      limit_bytes: larger arrays stay abstract (`frontend.materialize_limit`).
      accept: called with the step's call and the one before it (None if the script made one call); must not return.
      refuse: called with what keeps the step from being captured; must not return.
      step_name: `frontend.step`: the one function that is acceptable; None: any.
      wait_seconds: a decision is made by structure so long after the script was given a stand-in.
    """

    def __init__(
        self,
        limit_bytes: int,
        accept: Callable[[Call, Call | None], NoReturn],
        refuse: Callable[[CaptureError], NoReturn],
        step_name: str | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        self.trace = DeferredTrace(limit_bytes, on_read=self.on_read)
        self.accept = accept
        self.refuse = refuse
        self.step_name = step_name
        self.wait_seconds = wait_seconds
        self.functions: dict[Hashable, SeenFunction] = {}
        self.stand_in_since: float | None = None
        self.without_jit: tuple[StepIdentity, SourceLine | None] | None = None
        self._described: dict[Any, Call] = {}

    # The script calls a jitted function

    def on_call(self, function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The handler of the jit hook."""
        if function.kind == "pmap":
            self.refuse(refusals.pmap(function.identity))
        if jax.config.jax_disable_jit:
            self.without_jit = self.without_jit or (function.identity, current_line())
            return function.jitted(*args, **kwargs)
        if self.stand_in_since is not None and time.monotonic() - self.stand_in_since > self.wait_seconds:
            self.decide()
        seen = self._seen(function, args)
        seen.count += 1
        call = self._call(seen, function, args, kwargs)
        if not self._is_recorded(call):
            return function.jitted(*args, **kwargs)
        self._judge(seen, call)
        seen.last = call
        with self.trace.deferring(call):
            return function.jitted(*args, **kwargs)

    def _seen(self, function: HookedFunction, args: tuple[Any, ...]) -> SeenFunction:
        key = function_key(function, args)
        if key not in self.functions:
            self.functions[key] = SeenFunction(function.identity, function.fun, keep_alive=[function])
        return self.functions[key]

    def _call(
        self, seen: SeenFunction, function: HookedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        traced = function.jitted.trace(*args, **kwargs)
        known = self._described.get(traced.jaxpr)
        if known is None:
            leaves, arguments, results = describe_call(function, args, kwargs, traced)
            found = evidence(traced.jaxpr.jaxpr, constants=len(traced.jaxpr.jaxpr.invars) - len(leaves))
            matched = match_by_structure(arguments, results, found.additive)
            floats = {o: a for o, a in matched.items() if "float" in results[o].dtype}
            call = Call(
                seen, function, args, kwargs, leaves, arguments, results, found, matched if floats else {}, None
            )
            self._described[traced.jaxpr] = call
        else:
            leaves = jax_internals.flatten_arguments(function.jitted, args, kwargs)[1]
            call = known.again(args, kwargs, leaves)
        call.line = current_line()
        return call

    def _is_recorded(self, call: Call) -> bool:
        return bool(call.matched) or call.evidence.differentiates or self._is_named(call.function)

    def _is_named(self, seen: SeenFunction) -> bool:
        name = seen.identity.name
        return self.step_name is not None and (
            name == self.step_name or name.rpartition(".")[2] == self.step_name or name.endswith("." + self.step_name)
        )

    # Proof

    def _judge(self, seen: SeenFunction, call: Call) -> None:
        """Compares `call` with the one before it and decides if it can."""
        before = seen.last
        if before is not None and len(before.leaves) == len(call.leaves):
            carried = {i for i, leaf in enumerate(call.leaves) if (r := result_of(leaf)) and r[0].function is seen}
            updated_outside = self._updated_outside(call, before, carried)
            kept = {a for a, _ in call.evidence.additive | call.evidence.looped} & carried
            if updated_outside and call.bytes_of(set(updated_outside)) > call.bytes_of(kept):
                self._refuse_split(seen, call, updated_outside)
            elif carried and seen.proof is None:
                seen.proof = (before, call)
                seen.proven_at = (seen.count, time.monotonic())
        self._decide_if_certain()

    def _updated_outside(self, call: Call, before: Call, carried: set[int]) -> dict[int, list[Node]]:
        """Arguments made outside the function from its last results and their own last value, and how."""
        found: dict[int, list[Node]] = {}
        for i, leaf in enumerate(call.leaves):
            if i in carried or not is_deferred(unmoved(leaf)) or _is_another_steps(leaf):
                continue
            nodes = history(leaf)
            old = before.leaves[i]
            uses_results = any(c.function is call.function for c in calls_in(nodes))
            if uses_results and any(
                same_array(item, old) and node.tag is not before for node in nodes for item in node.inputs
            ):
                found[i] = nodes
        return found

    def _refuse_split(self, seen: SeenFunction, call: Call, outside: dict[int, list[Node]]) -> NoReturn:
        others = {c.function: None for nodes in outside.values() for c in calls_in(nodes) if c.function is not seen}
        self.refuse(refusals.split_step(seen, list(others), call.line))

    def _decide_if_certain(self) -> None:
        proven = [f for f in self.functions.values() if f.proof is not None]
        named = [f for f in proven if self._is_named(f)]
        if self.step_name is not None:
            if named:
                self._accept(named[0])
            return
        strong = [f for f in proven if f.may_be_step]
        if len(strong) > 1 and not take_turns(strong):
            self.refuse(refusals.several_steps(strong, self.functions.values()))
        for function in strong:
            assert function.proven_at is not None
            calls, since = function.count - function.proven_at[0], time.monotonic() - function.proven_at[1]
            if calls >= LOOK_AHEAD_CALLS or since > LOOK_AHEAD_SECONDS:
                self._accept(function)
        rivals = any(f.may_be_step for f in self.functions.values())
        weak = [f for f in proven if not f.may_be_step and f.count >= WEAK_CALLS and self._trains_by_hand(f)]
        if not rivals and len(weak) == 1:
            self._accept(weak[0])

    def _trains_by_hand(self, function: SeenFunction) -> bool:
        """Whether a function that carries state without taking gradients may be a step with gradients by hand.

        It takes a batch, an array that comes from no jitted function, and what it carries is more than sums of
        metrics: arrays, or all there is besides the batch.
        """
        assert function.proof is not None
        before, call = function.proof
        arrays = [i for i, argument in enumerate(call.arguments) if argument.shape]
        carried = [i for i in arrays if (r := result_of(call.leaves[i])) and r[0].function is function]
        unchanged = [i for i in arrays if same_array(call.leaves[i], before.leaves[i])]
        batch = any(not calls_in(history(call.leaves[i])) for i in arrays)
        return batch and bool(carried or not unchanged)

    def _accept(self, function: SeenFunction) -> NoReturn:
        assert function.proof is not None
        before, call = function.proof
        self.accept(call, before)

    # The script reads a value

    def on_read(self, value: Deferred) -> Any:
        """The number that the script gets for a value that was only recorded."""
        nodes = history(value)
        calls = calls_in(nodes)
        line = current_line()
        # What is merely moved exists already.
        needed = max((node.nbytes for node in nodes if not node.moves), default=0)
        affordable = needed <= self.trace.limit_bytes
        if not any(call.may_be_step for call in calls):
            if not affordable:
                self.refuse(refusals.read_of_abstract(value, needed, self.trace.limit_bytes, line))
            return materialize([value])[0]
        if aval_bytes(value.aval) > self.trace.limit_bytes:
            self.decide(refusals.read_of_abstract(value, needed, self.trace.limit_bytes, line))
        if self.stand_in_since is None:
            self.stand_in_since = time.monotonic()
        if not affordable:
            return _stand_in(value.aval)
        return evaluate([value], substitute=_stand_ins)[0]

    # The end

    def decide(self, otherwise: CaptureError | None = None) -> NoReturn:
        """Decides with what is known; `otherwise` is refused if that is not enough."""
        functions = list(self.functions.values())
        strong = [f for f in functions if f.proof is not None and f.may_be_step]
        if self.step_name is not None:
            self._decide_named(otherwise)
        if len(strong) > 1 and not take_turns(strong):
            self.refuse(refusals.several_steps(strong, functions))
        if strong:
            self._accept(strong[0])
        candidates = [f for f in functions if f.may_be_step]
        by_structure = [f for f in candidates if _updates_inside(f)]
        if len(by_structure) == 1 or (by_structure and take_turns(by_structure)):
            assert by_structure[0].last is not None
            self.accept(by_structure[0].last, None)
        if len(by_structure) > 1:
            self.refuse(refusals.several_steps(by_structure, functions))
        loops = [f for f in candidates if _loops_inside(f)]
        if loops:
            self.refuse(refusals.whole_loop(loops[0]))
        weak = [f for f in functions if f.proof is not None and self._trains_by_hand(f)]
        if not candidates and len(weak) == 1:
            self._accept(weak[0])
        if not functions and self.without_jit is not None:
            self.refuse(refusals.jit_turned_off(*self.without_jit))
        self.refuse(otherwise or refusals.no_step(functions))

    def _decide_named(self, otherwise: CaptureError | None) -> NoReturn:
        assert self.step_name is not None
        named = [f for f in self.functions.values() if self._is_named(f)]
        if not named:
            self.refuse(refusals.unknown_name(self.step_name, self.functions.values()))
        function = named[0]
        if function.proof is not None:
            self._accept(function)
        if function.last is not None and (_updates_inside(function) or not function.last.evidence.differentiates):
            self.accept(function.last, None)
        if _loops_inside(function):
            self.refuse(refusals.whole_loop(function))
        self.refuse(otherwise or refusals.named_is_no_step(function))


def _is_another_steps(leaf: Any) -> bool:
    """Whether the value is state that another function updates, as in adversarial training."""
    found = result_of(leaf)
    return found is not None and found[0].may_be_step and _updates_inside(found[0].function)


def _updates_inside(function: SeenFunction) -> bool:
    """Whether by structure alone the function returns new state: most of it without a loop, by addition."""
    call = function.last
    if call is None:
        return False
    added = {a for a, o in call.evidence.additive if call.matched.get(o) == a}
    return call.bytes_of(added) > call.bytes_of({a for a, _ in call.evidence.looped})


def _loops_inside(function: SeenFunction) -> bool:
    call = function.last
    if call is None:
        return False
    return call.bytes_of({a for a, o in call.evidence.looped if call.matched.get(o) == a}) > 0


def _stand_ins(node: Node) -> list[Any] | None:
    if isinstance(node.tag, Call) and node.tag.may_be_step:
        return [_stand_in(aval) for aval in node.avals]
    return None


def _stand_in(aval: Any) -> Any:
    """A harmless number: 0.5 as a loss or an accuracy, 1 as a count, False."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = np.zeros((*aval.shape, *jax.random.key_data(jax.random.key(0)).shape), np.uint32)
        return jax.random.wrap_key_data(data, impl=aval.dtype._impl.name)
    kind = np.dtype(aval.dtype).kind
    value = False if kind == "b" else 1 if kind in "iu" else 0.5
    with jax_internals.evaluating():
        return jax.numpy.full(aval.shape, value, aval.dtype)
