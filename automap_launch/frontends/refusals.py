"""Why no train step could be captured, in the user's words, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from automap_launch.errors import CaptureError
from automap_launch.frontends.functions_seen import SeenFunction
from automap_launch.frontends.recording import aval_bytes
from automap_launch.frontends.source_lines import is_users
from automap_launch.train_step import SourceLine, StepIdentity
from automap_launch.units import format_bytes

_JOINED = (
    "put both into one jitted function that takes and returns the state:\n"
    "    @jax.jit\n"
    "    def train_step(params, opt_state, batch):\n"
    "        loss, grads = jax.value_and_grad(loss_fn)(params, batch)\n"
    "        updates, opt_state = optimizer.update(grads, opt_state, params)\n"
    "        return optax.apply_updates(params, updates), opt_state, loss"
)
_BY_NAME = "name the step with frontend.step=NAME"


def listed(functions: Iterable[SeenFunction]) -> str:
    """The jitted functions seen, one a line, with their calls; those of libraries only if there are no others."""
    return "\n".join(f"    {f}: {f.count} call{'s' if f.count != 1 else ''}" for f in _users(functions))


def _users(functions: Iterable[SeenFunction]) -> list[SeenFunction]:
    seen = list(functions)
    own = [f for f in seen if f.identity.source is None or is_users(f.identity.source.file)]
    return own or seen


def pmap(identity: StepIdentity) -> CaptureError:
    return _at(
        identity.source,
        f"`{identity.name}` is compiled with jax.pmap, which fixes one form of parallelism",
        "compile the step with jax.jit as for one device: automap-launch spreads it over all of them",
    )


def split_step(function: SeenFunction, others: Sequence[SeenFunction], line: SourceLine | None) -> CaptureError:
    others = [f for f in others if f.identity.source is None or is_users(f.identity.source.file)]
    if others:
        names = " and ".join(map(str, [function, *others]))
        what = f"the training step is spread over several jitted functions: {names}"
    else:
        what = f"{function} returns gradients, and the parameters are updated outside of it, by code that is not jitted"
    if line is not None:
        what += f" (seen at its second call, {line})"
    return _at(function.identity.source, what, _JOINED)


def several_steps(steps: Sequence[SeenFunction], functions: Iterable[SeenFunction]) -> CaptureError:
    names = " and ".join(map(str, steps))
    return _at(
        steps[0].identity.source,
        f"the script trains with several steps: {names}. One plan serves one step",
        f"join them into one jitted function, or {_BY_NAME}; the others then run as ordinary functions\n"
        f"jitted functions seen:\n{listed(functions)}",
    )


def jit_turned_off(identity: StepIdentity, line: SourceLine | None) -> CaptureError:
    return _at(
        line,
        f"`{identity.name}` is called while jit is turned off, so there is no compiled step to plan",
        "leave out jax.disable_jit(), jax.config.update('jax_disable_jit', True) or JAX_DISABLE_JIT",
    )


def calls_back_in_order(identity: StepIdentity, line: SourceLine | None) -> CaptureError:
    return _at(
        line or identity.source,
        f"`{identity.name}` calls back into Python in a fixed order (ordered=True), which JAX does on one device only",
        "leave out ordered=True: the callbacks of one step come before those of the next, as a rule",
    )


def whole_loop(function: SeenFunction) -> CaptureError:
    return _at(
        function.identity.source,
        f"{function} runs a whole training loop in one jitted call, so there is no single step to plan",
        "jit one step, and call it in a Python loop over the batches: `for batch in batches: state, loss = "
        "train_step(state, batch)`. A scan inside the step (layers, gradient accumulation) is fine",
    )


def no_step(functions: Sequence[SeenFunction]) -> CaptureError:
    if not functions:
        return CaptureError(
            "the script ended and called no jitted function",
            hint="decorate the function that does one training step (gradients and update) with @jax.jit; it takes "
            "the state and a batch, and returns the new state",
        )
    return CaptureError(
        "the script ended, and none of its jitted functions is a training step: a function that takes gradients, "
        f"updates the state it is given and returns it\n  jitted functions seen:\n{listed(functions)}",
        hint=f"{_JOINED}\n  or, if one of these is the step, {_BY_NAME}",
    )


def unknown_name(name: str, functions: Iterable[SeenFunction]) -> CaptureError:
    seen = listed(functions) or "    none"
    return CaptureError(
        f"frontend.step={name}: the script called no jitted function of that name\n  jitted functions seen:\n{seen}",
        hint="give one of these names, or leave frontend.step out",
    )


def named_is_no_step(function: SeenFunction) -> CaptureError:
    return _at(
        function.identity.source,
        f"frontend.step={function.identity.name}: {function} was called {function.count} time(s) and returns nothing "
        "that is the new value of what it was given",
        _JOINED,
    )


def read_of_abstract(value: Any, needed: int, limit_bytes: int, line: SourceLine | None) -> CaptureError:
    own = aval_bytes(value.aval)
    what = f"{value.aval.str_short()} ({format_bytes(own)})"
    if own < needed:
        what += f", which is made from an array of {format_bytes(needed)}"
    return _at(
        line,
        f"the script reads the value of {what}. While capturing, arrays above frontend.materialize_limit="
        f"{format_bytes(limit_bytes)} are described but not made",
        f"read it after the first training step, or raise the limit: frontend.materialize_limit={_above(needed)}",
    )


def _above(count: int) -> str:
    """A round size above `count` bytes, as the config takes it."""
    mebibytes = 2 ** max(0, math.ceil(math.log2(max(count, 1) / 2**20)))
    return f"{mebibytes // 1024}GiB" if mebibytes >= 1024 else f"{mebibytes}MiB"


def _at(line: SourceLine | None, message: str, hint: str) -> CaptureError:
    return CaptureError(message, hint=hint, file=line.file if line else None, line=line.line if line else None)
