"""A graph of TensorFlow turned into a portable StableHLO module, and what its flat arguments and results are.

XLA's parameters are the call's tensors and then the captured ones, in their order; a variable's parameter is its value.
Its results are what the function returns and then the new values of variables, each with a note of the parameter
whose place it takes. TensorFlow leaves out what is constant, which is told by counting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from automap_launch.frontends import hlo_modules, jax_internals
from automap_launch.frontends.roles import assign_roles
from automap_launch.frontends.tensorflow import names, refusals, tf_internals
from automap_launch.frontends.tensorflow.graph_lines import GraphLines
from automap_launch.train_step import Argument, Result, SourceLine, fingerprint_of

# Constants of more elements than this are left out of the readable text; the artifact holds them.
_TEXT_CONSTANT_ELEMENTS = 64
# Begins the path of a result that is the new value of a variable.
NEW = "new/"

_SYMBOL = re.compile(r'@[\w.$-]+|@"[^"]*"')
_NAME = re.compile(r'"((?:[^"\\]|\\.)+)"')


@dataclass(frozen=True)
class LoweredGraph:
    """What lowering gives.

    Attributes:
      artifact: the portable StableHLO module; the same for all platforms, since nothing is optimized yet.
      arguments, results: in the module's order, with their roles and what replaces what.
      fixed: for each result that the function returns and the module leaves out, its place and value.
      returned: how many of the module's results the function returns; new values of variables follow.
      text, sources, fingerprint: as of `TrainStep`.
    """

    artifact: bytes
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    fixed: dict[int, Any]
    returned: int
    text: str
    sources: tuple[SourceLine | None, ...]
    fingerprint: str


def lower_graph(function: Any, concrete: Any, flat: Sequence[Any], captured: Sequence[Any]) -> LoweredGraph:
    """Lowers one call of a function that was traced for XLA.

    Args:
      function: the `tf.function`.
      concrete: its graph for this call's types.
      flat, captured: the call's tensors, and those that the graph captures.

    Raises:
      CaptureError: XLA cannot take the function, or its module is not of the form described above; the message names
        the operation and the user's line.
    """
    lines = GraphLines(concrete.graph)
    refusals.check_graph(function, concrete, lines)
    try:
        hlo = tf_internals.serialized_hlo(concrete, flat, captured)
    except (tf_internals.OpError, ValueError) as error:
        raise refusals.not_compilable(function, error, lines) from error
    try:
        module, aliases = hlo_modules.from_hlo(hlo)
    except hlo_modules.ForeignOperationError as error:
        raise refusals.foreign(function, error.operation, _source(error.operation.location, lines)) from error
    artifact = jax_internals.portable_artifact(module)
    module = jax_internals.read_artifact(artifact)
    inputs, outputs = hlo_modules.signature(module)
    arguments = _arguments(function, concrete, [*flat, *captured], len(flat), inputs)
    results, fixed = _results(function, concrete, arguments, outputs, aliases)
    roles = _roles(arguments, [*flat, *captured], len(flat), set(aliases.values()))
    text = jax_internals.module_text(module)
    return LoweredGraph(
        artifact=artifact,
        arguments=tuple(
            Argument(a.path, a.shape, a.dtype, role, donated=i in aliases.values())
            for i, (a, role) in enumerate(zip(arguments, roles, strict=True))
        ),
        results=tuple(results),
        fixed=fixed,
        returned=len(outputs) - len(aliases),
        text=jax_internals.module_text(module, elide_above=_TEXT_CONSTANT_ELEMENTS),
        sources=tuple(_source(str(o.location), lines) for o in jax_internals.operations(module)),
        fingerprint=fingerprint_of(_without_names(text)),
    )


def _arguments(
    function: Any, concrete: Any, tensors: Sequence[Any], called_with: int, inputs: Sequence[hlo_modules.Tensor]
) -> list[Argument]:
    if len(inputs) != len(tensors):
        raise refusals.constant_arguments(function, len(tensors) - len(inputs))
    placeholders = [t.op.name for t in concrete.inputs]
    variables = {id(tf_internals.raw_handle(v)): v for v in concrete.graph.variables}
    captured = [variables.get(id(t)) for t in tensors]
    known = [v for v in captured if v is not None]
    paths = iter(names.variable_paths(known, function.python_function))
    arguments = []
    for i, (tensor, variable, found) in enumerate(zip(tensors, captured, inputs, strict=True)):
        path = next(paths) if variable is not None else placeholders[i]
        if variable is None and i >= called_with:
            path = f"captured/{path}"
        if tensor.dtype != tf.resource:
            shape: Any = tuple(tensor.shape)
        else:
            shape = found.shape if variable is None else tuple(variable.shape)
        if shape != found.shape:
            raise refusals.other_signature(function, f"{path} is {list(shape)}, but {list(found.shape)} in the module")
        arguments.append(Argument(path, found.shape, found.dtype, "other"))
    unique = names.unique([a.path for a in arguments])
    return [Argument(path, a.shape, a.dtype, "other") for path, a in zip(unique, arguments, strict=True)]


def _results(
    function: Any,
    concrete: Any,
    arguments: Sequence[Argument],
    outputs: Sequence[hlo_modules.Tensor],
    aliases: dict[int, int],
) -> tuple[list[Result], dict[int, Any]]:
    """The module's results, and the returned values that it leaves out because they are constant."""
    returned = len(outputs) - len(aliases)
    if sorted(aliases) != list(range(returned, len(outputs))):
        raise refusals.other_signature(function, f"{sorted(aliases)} of {len(outputs)} results are new state")
    constants = {i: tf_internals.constant_value(t) for i, t in enumerate(concrete.outputs)}
    fixed = {} if returned == len(concrete.outputs) else {i: v for i, v in constants.items() if v is not None}
    kept = [i for i in range(len(concrete.outputs)) if i not in fixed]
    if len(kept) != returned:
        raise refusals.other_signature(
            function, f"it returns {len(concrete.outputs)} tensors, but {returned} in the module"
        )
    paths = names.result_paths(concrete)
    results = []
    for index, output in enumerate(outputs):
        if index < returned:
            results.append(Result(paths[kept[index]], output.shape, output.dtype))
            continue
        replaced = arguments[aliases[index]]
        if (replaced.shape, replaced.dtype) != (output.shape, output.dtype):
            raise refusals.other_signature(function, f"the new value of {replaced.path} is {list(output.shape)}")
        results.append(Result(f"{NEW}{replaced.path}", output.shape, output.dtype, replaces=aliases[index]))
    return results, fixed


def _roles(
    arguments: Sequence[Argument], tensors: Sequence[Any], called_with: int, replaced: set[int]
) -> Sequence[Any]:
    """Variables and captured constants are state; what the script passes anew in each call is batch, or other."""
    state = replaced | {i for i, t in enumerate(tensors) if t.dtype == tf.resource or i >= called_with}
    return assign_roles(arguments, state)


def _without_names(text: str) -> str:
    """The module without what its functions are called: their names count what TensorFlow has traced before."""
    known: dict[str, str] = {}
    return _SYMBOL.sub(lambda found: known.setdefault(found.group(), f"@{len(known)}"), text)


def _source(location: str, lines: GraphLines) -> SourceLine | None:
    """The user's line of an operation, which HLO calls by the name of the graph's operation that it comes from."""
    for name in _NAME.findall(location):
        found = lines.of(name)
        if found is not None:
            return found
    return None
