"""What a function's jaxpr tells about its being a train step: gradients taken inside, state updated additively.

A train step takes gradients and returns the new value of what it was given: `p + u`, `p - rate * g`, `count + 1`. A
function that returns gradients has outputs of the very same shapes, but no output to which its input was added with
coefficient one: derivatives bring factors (`2 * decay * p`), so a chain of additions from an input to an output of the
same shape tells the two apart. Running averages (`b * m + (1 - b) * g`) have no such chain and do not count.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from automap_launch.frontends import jax_internals

_SAME = frozenset(
    {"convert_element_type", "copy", "copy_p", "device_put", "optimization_barrier", "sharding_constraint", "name"}
)
_INNER = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_lin": "call_jaxpr",
}


class Flow(enum.Flag):
    """How an input reaches a value."""

    SAME = 0
    ADDED = enum.auto()  # something was added to it
    LOOPED = enum.auto()  # it is what a loop that takes gradients carries from one turn to the next


# Inputs that reach a value with coefficient one, and how.
Flows = dict[int, Flow]


@dataclass(frozen=True)
class StepEvidence:
    """What a jaxpr shows.

    Attributes:
      differentiates: gradients are taken inside.
      additive: pairs (input, output): the output is the input with something added.
      looped: such pairs, or carried values of another kind, whose change happens in a loop that takes gradients.
      forwarded: pairs (input, output): the output is the input itself.
    """

    differentiates: bool
    additive: frozenset[tuple[int, int]]
    looped: frozenset[tuple[int, int]]
    forwarded: frozenset[tuple[int, int]]


def evidence(jaxpr: Any, constants: int = 0) -> StepEvidence:
    """Reads `jaxpr`, whose first `constants` inputs are none of the function's arguments and are not counted."""
    arguments = len(jaxpr.invars) - constants
    outputs = _flows(jaxpr, [{}] * constants + [{i: Flow.SAME} for i in range(arguments)])
    pairs = [((i, o), flow) for o, flows in enumerate(outputs) for i, flow in flows.items()]
    return StepEvidence(
        differentiates=differentiates(jaxpr),
        additive=frozenset(pair for pair, flow in pairs if flow == Flow.ADDED),
        looped=frozenset(pair for pair, flow in pairs if Flow.LOOPED in flow),
        forwarded=frozenset(pair for pair, flow in pairs if flow == Flow.SAME),
    )


def differentiates(jaxpr: Any) -> bool:
    """Whether reverse-mode gradients are taken inside: JAX names transposed equations so."""
    return jax_internals.any_equation(jaxpr, lambda equation: "transpose(" in jax_internals.name_stack(equation))


def stacked(jaxpr: Any, constants: int = 0) -> frozenset[int]:
    """Inputs that are stacks of batches: a loop that takes gradients in each turn goes through them, slice by slice.

    A loop over the time steps of a sequence takes no gradients itself; only the one that JAX makes from it does.
    """
    sliced: dict[int, bool] = {}  # input -> whether all loops that slice it take gradients

    def visit(jaxpr: Any, inputs: Sequence[int | None]) -> None:
        known = {v: i for v, i in zip(jaxpr.invars, inputs, strict=True) if i is not None}
        for equation in jaxpr.eqns:
            sources = [None if isinstance(a, jax_internals.Literal) else known.get(a) for a in equation.invars]
            if not any(source is not None for source in sources):
                continue
            name, params = equation.primitive.name, equation.params
            if name in _SAME:
                known.update({v: i for v, i in zip(equation.outvars, sources, strict=True) if i is not None})
            elif name == "scan":
                first = params["num_consts"] + params["num_carry"]
                for source in sources[first:]:
                    if source is not None:
                        sliced[source] = sliced.get(source, True) and differentiates(_open(params["jaxpr"]))
            elif name in _INNER and len((inner := _open(params[_INNER[name]])).invars) == len(sources):
                visit(inner, sources)

    arguments = len(jaxpr.invars) - constants
    visit(jaxpr, [None] * constants + list(range(arguments)))
    return frozenset(i for i, gradients in sliced.items() if gradients)


def _flows(jaxpr: Any, inputs: Sequence[Flows]) -> list[Flows]:
    known: dict[Any, Flows] = dict(zip(jaxpr.invars, inputs, strict=True))

    def flow_of(atom: Any) -> Flows:
        return {} if isinstance(atom, jax_internals.Literal) else known.get(atom, {})

    for equation in jaxpr.eqns:
        results = _equation_flows(equation, [flow_of(atom) for atom in equation.invars])
        for variable, flows in zip(equation.outvars, results, strict=False):
            if flows:
                known[variable] = flows
    return [flow_of(atom) for atom in jaxpr.outvars]


def _equation_flows(equation: Any, inputs: list[Flows]) -> list[Flows]:
    name, params = equation.primitive.name, equation.params
    if not any(inputs):
        return []
    if name in _SAME:
        return inputs
    if name in ("add", "add_any"):
        return [_added(_union(_of_shape(equation, inputs)))]
    if name == "sub":
        return [_added(_union(_of_shape(equation, inputs)[:1]))]
    if name == "select_n":
        return [_union(inputs[1:])]
    if name == "cond":
        branches = [_flows(_open(branch), inputs[1:]) for branch in params["branches"]]
        return [_union(options) for options in zip(*branches, strict=True)]
    if name == "scan":
        start, count = params["num_consts"], params["num_carry"]
        return _carried(_open(params["jaxpr"]), inputs[start : start + count], start)
    if name == "while":
        start = params["cond_nconsts"] + params["body_nconsts"]
        return _carried(_open(params["body_jaxpr"]), inputs[start:], params["body_nconsts"])
    if name in _INNER and _INNER[name] in params:
        inner = _open(params[_INNER[name]])
        return _flows(inner, inputs) if len(inner.invars) == len(inputs) else []
    return []


def _carried(body: Any, carries: list[Flows], first: int) -> list[Flows]:
    """Flows of a loop's final carries; `first` is the position of the first carry among the body's inputs."""
    count = len(carries)
    numbered: list[Flows] = [{} for _ in body.invars]
    for k in range(count):
        numbered[first + k] = {k: Flow.SAME}
    through = _flows(body, numbered)[:count]
    unchanged = [through[k].get(k) == Flow.SAME for k in range(count)]
    if differentiates(body):
        return [carries[k] if unchanged[k] else _with(carries[k], Flow.LOOPED) for k in range(count)]
    return [
        _union([_with(carries[j], flow) for j, flow in through[k].items()]) if not unchanged[k] else carries[k]
        for k in range(count)
    ]


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _of_shape(equation: Any, inputs: list[Flows]) -> list[Flows]:
    shape = equation.outvars[0].aval.shape
    return [f if atom.aval.shape == shape else {} for atom, f in zip(equation.invars, inputs, strict=True)]


def _with(flows: Flows, flow: Flow) -> Flows:
    return {i: known | flow for i, known in flows.items()}


def _added(flows: Flows) -> Flows:
    return _with(flows, Flow.ADDED)


def _union(many: Sequence[Flows]) -> Flows:
    merged: Flows = {}
    for flows in many:
        for i, flow in flows.items():
            merged[i] = merged.get(i, Flow.SAME) | flow
    return merged
