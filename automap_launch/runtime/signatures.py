"""A layout made for the captured signature, carried over to another: the last batch, another static value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from automap_launch.plan.layout import Layout, Spec
from automap_launch.train_step import Argument, Result, TrainStep


@dataclass(frozen=True)
class FittedStep:
    """Arguments with roles, results with what they replace, and their layout."""

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    layout: Layout


def fit(step: TrainStep, layout: Layout, arguments: Sequence[Argument], results: Sequence[Result]) -> FittedStep:
    """Roles and shardings for a signature of `step`, by the paths of its arguments and results.

    State keeps the shardings it lies in. A dim of another tensor that is no longer divisible by its axis stays whole,
    and so does what the captured signature did not have: always exact, if slower.

    Args:
      step, layout: the captured step, and the layout that the plan gave it.
      arguments, results: of the signature at hand, flat; roles and `replaces` are not read.
    """
    known = {a.path: (a, i) for i, a in enumerate(step.arguments)}
    known_results = {r.path: (r, i) for i, r in enumerate(step.results)}
    places = {a.path: i for i, a in enumerate(arguments)}
    fitted: list[Argument] = []
    compute: list[Spec] = []
    storage: list[Spec] = []
    for argument in arguments:
        captured, index = known.get(argument.path, (None, None))
        if captured is None or index is None:
            fitted.append(argument)
            compute.append(())
            storage.append(())
            continue
        fitted.append(replace(argument, role=captured.role))
        compute.append(_divisible(layout.compute[index], argument.shape, layout.mesh))
        storage.append(_divisible(layout.storage[index], argument.shape, layout.mesh))
    outcome: list[Result] = []
    out_specs: list[Spec] = []
    for result in results:
        before, index = known_results.get(result.path, (None, None))
        if before is None or index is None:
            outcome.append(result)
            out_specs.append(())
            continue
        replaced = None if before.replaces is None else places.get(step.arguments[before.replaces].path)
        outcome.append(replace(result, replaces=replaced))
        out_specs.append(_divisible(layout.results[index], result.shape, layout.mesh))
    shardings = Layout(layout.mesh, tuple(compute), tuple(storage), tuple(out_specs))
    return FittedStep(tuple(fitted), tuple(outcome), shardings)


def same_state(step: TrainStep, arguments: Sequence[Argument]) -> bool:
    """Whether `arguments` carry the state that `step` was captured with: same paths, shapes and dtypes."""
    found = {a.path: (a.shape, a.dtype) for a in arguments}
    return all(found.get(a.path) == (a.shape, a.dtype) for a in step.arguments if a.role == "state")


def _divisible(spec: Spec, shape: tuple[int, ...], mesh: Mapping[str, int]) -> Spec:
    """`spec` without the axes that do not divide their dim; all whole for a tensor of another rank."""
    if len(spec) > len(shape):
        return ()
    return tuple(None if axis is None or size % mesh[axis] else axis for axis, size in zip(spec, shape, strict=False))
