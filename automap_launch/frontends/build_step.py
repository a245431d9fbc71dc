"""The `TrainStep` of a call that was found to be the step."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Sequence

import jax
import jaxlib

from automap_launch.frontends.deferred import is_deferred
from automap_launch.frontends.functions_seen import Call, calls_in, history, result_of, same_array, unmoved
from automap_launch.frontends.lowering import lower_step
from automap_launch.frontends.matching import match_by_structure
from automap_launch.frontends.roles import assign_roles
from automap_launch.train_step import Entry, TrainStep


def build_step(call: Call, before: Call | None, entry: Entry, platforms: Sequence[str]) -> TrainStep:
    """Lowers the call and decides roles and what replaces what.

    Args:
      before: the call whose results `call` received; None: what replaces what is told by structure alone.

    Raises:
      CaptureError: the step cannot be lowered on its own.
    """
    if before is None:
        replaced = dict(call.matched)
        unchanged: set[int] = set()
        derived: set[int] = set()
    else:
        replaced, derived = _carried(call)
        unchanged = {
            i
            for i, (new, old) in enumerate(zip(call.leaves, before.leaves, strict=True))
            if same_array(new, old) and i not in replaced.values()
        }
    for a, o in sorted(call.evidence.forwarded):
        if o not in replaced and a not in replaced.values() and a not in derived:
            replaced[o] = a
    roles = assign_roles(call.arguments, replaced.values(), unchanged, derived)
    lowered = lower_step(call.hooked, call.args, call.kwargs, platforms)
    return TrainStep(
        identity=call.function.identity,
        frontend="jax",
        arguments=tuple(
            dataclasses.replace(argument, role=role) for argument, role in zip(lowered.arguments, roles, strict=True)
        ),
        results=tuple(
            dataclasses.replace(result, replaces=replaced.get(o)) for o, result in enumerate(lowered.results)
        ),
        modules=lowered.modules,
        fingerprint=lowered.fingerprint,
        sources=lowered.sources,
        has_callbacks=lowered.has_callbacks,
        entry=entry,
        versions={
            "automap_launch": importlib.metadata.version("automap-launch"),
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "python": platform.python_version(),
        },
        text=lowered.text,
    )


def _carried(call: Call) -> tuple[dict[int, int], set[int]]:
    """Result -> argument that it replaces, and the other arguments computed from earlier results."""
    replaced: dict[int, int] = {}
    derived: set[int] = set()
    for i, leaf in enumerate(call.leaves):
        found = result_of(leaf)
        if found is not None and found[0].function is call.function:
            # One result may be passed in two places (parameters and their average, at first equal).
            if found[1] not in replaced or call.matched.get(found[1]) == i:
                derived |= {replaced[found[1]]} if found[1] in replaced else set()
                replaced[found[1]] = i
            else:
                derived.add(i)
        elif is_deferred(unmoved(leaf)) and any(c.function is call.function for c in calls_in(history(leaf))):
            derived.add(i)
    # State that the script changes between the calls (weights clipped outside) still takes its result's place.
    free = [o for o in range(len(call.results)) if o not in replaced]
    places = sorted(derived)
    matched = match_by_structure([call.arguments[i] for i in places], [call.results[o] for o in free])
    for o, i in matched.items():
        replaced[free[o]] = places[i]
    return replaced, derived - set(replaced.values())
