"""Why a TensorFlow script has no step that can be planned, in the user's words, and what to change."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from typing import Any

from automap_launch.errors import CaptureError
from automap_launch.frontends.hlo_modules import Foreign
from automap_launch.frontends.libraries import identity_of
from automap_launch.frontends.source_lines import is_users
from automap_launch.frontends.tensorflow import tf_internals
from automap_launch.frontends.tensorflow.graph_lines import GraphLines, line_of
from automap_launch.train_step import SourceLine, StepIdentity

_JOINED = (
    "put gradients and update into one function that takes a batch:\n"
    "    @tf.function\n"
    "    def train_step(x, y):\n"
    "        with tf.GradientTape() as tape:\n"
    "            loss = loss_fn(y, model(x, training=True))\n"
    "        gradients = tape.gradient(loss, model.trainable_variables)\n"
    "        optimizer.apply_gradients(zip(gradients, model.trainable_variables))\n"
    "        return loss"
)
_BY_NAME = "name the step with frontend.step=NAME"

# Operations of a graph that take batches from a data set.
_ITERATOR_OPS = ("IteratorGetNext", "IteratorGetNextAsOptional", "IteratorGetNextSync", "MakeIterator", "ReduceDataset")

# Operations that draw random numbers from a state of TensorFlow's own. Those of `random_draws` are not among a graph's
# where the step calls them by `tf.random`.
_STATEFUL_RANDOM = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
)

# What to do about operations that XLA does not know.
_PYTHON = "tf.py_function and tf.numpy_function run Python inside the step: do this before the step, in tf.data"
_ADVICE = {
    "PyFunc": _PYTHON,
    "EagerPyFunc": _PYTHON,
    "PyFuncStateless": _PYTHON,
    "Print": "move tf.print out of the step: return the value and print it where the step is called",
    "PrintV2": "move tf.print out of the step: return the value and print it where the step is called",
    "Where": "its result has a size that depends on values: use tf.where(condition, a, b), which keeps the size",
    "Unique": "its result has a size that depends on values: do this before the step, in tf.data",
}
_STRINGS = "strings cannot be computed on accelerators: turn them into numbers before the step, in tf.data"
_DYNAMIC = "all sizes must be known when the step is called: do this before the step, in tf.data"


def check_graph(function: Any, concrete: Any, lines: GraphLines) -> None:
    """Refuses a graph with operations that XLA would drop, or fail on without a word of where.

    Raises:
      CaptureError: it has some.
    """
    for operation in lines.all():
        if operation.type in _ITERATOR_OPS:
            raise _batch_inside(function, operation)
        if operation.type in ("PrintV2", "Print", "PyFunc", "EagerPyFunc", "PyFuncStateless"):
            raise _operation(function, operation, operation.type)
        if operation.type in _STATEFUL_RANDOM:
            raise _random(function, operation)
        if operation.type.startswith("Collective"):
            raise _strategy(function, line_of(operation))
    for tensor in concrete.inputs:
        if tensor.dtype.name in ("string", "variant"):
            raise _at(
                _source(function),
                f"{_name(function)} is given a tensor of {tensor.dtype.name}s ({tensor.op.name})",
                _STRINGS if tensor.dtype.name == "string" else _DYNAMIC,
            )


def _batch_inside(function: Any, operation: Any) -> CaptureError:
    line = line_of(operation)
    hint = "give it one batch a call: `for x, y in dataset: train_step(x, y)`, or `train_step(next(iterator))`"
    text = linecache.getline(line.file, line.line).strip() if line is not None else ""
    if operation.type == "IteratorGetNext" and text:
        name = identity_of(function.python_function).name.rpartition(".")[2]
        hint = (
            f"`{text}` reads an iterator that is no argument. Make it one:\n"
            f"    def {name}(iterator):   # after `self`, in a method; the rest stays\n"
            f"and call `{name}(iterator)`; or let it take the batch itself: `{name}(next(iterator))`"
        )
    return _at(line or _source(function), f"{_name(function)} takes batches from a data set inside the function", hint)


def foreign(function: Any, operation: Foreign, line: SourceLine | None) -> CaptureError:
    """`operation`: of XLA's module; `line`: where it comes from in the script."""
    if operation.dynamic:
        return _at(
            line or _source(function),
            f"{_name(function)} has tensors whose size depends on values (tf.boolean_mask, tf.unique, tf.where(x), "
            "sparse tensors)",
            "keep the size: multiply by the mask, or use tf.where(condition, a, b); or do this before the step, in "
            "tf.data",
        )
    return _at(
        line or _source(function),
        f"{_name(function)} calls {operation.name}, which only TensorFlow's own compiler has",
        "do this part outside of the step",
    )


def _random(function: Any, operation: Any) -> CaptureError:
    return _at(
        line_of(operation) or _source(function),
        f"{_name(function)} draws random numbers with {operation.type}, which XLA cannot make from a state that the "
        "step carries: they would differ from device to device",
        "draw them before the step, in tf.data, and pass them with the batch; or make them of tf.random.normal and "
        "tf.random.uniform",
    )


def not_compilable(function: Any, error: Exception, lines: GraphLines) -> CaptureError:
    """XLA's own words cut down to the operation and its place in the script."""
    message = str(getattr(error, "message", error))
    for name in tf_internals.nodes_in(message):
        operation = lines.operation(name)
        if operation is not None:
            return _operation(function, operation, operation.type)
    missing = re.search(r"No registered '(\w+)' OpKernel", message)
    if missing:
        for operation in lines.all():
            if operation.type == missing.group(1):
                return _operation(function, operation, operation.type)
    return _at(
        _source(function),
        f"XLA cannot compile {_name(function)}: {_first_sentence(message)}",
        _DYNAMIC,
    )


def constant_arguments(function: Any, count: int) -> CaptureError:
    return _at(
        _source(function),
        f"{count} argument(s) of {_name(function)} decide the sizes of tensors in it (as in tf.zeros([n]), tf.range(n) "
        "or tf.math.bincount(x)), so that it is another program for each value",
        "pass sizes as Python numbers instead of tensors; count labels by tf.reduce_sum(tf.one_hot(x, classes), 0)",
    )


def other_signature(function: Any, what: str) -> CaptureError:
    return _at(
        _source(function),
        f"XLA's module of {_name(function)} has another form than its function: {what}",
        "variables must keep their shapes and be initialized before the step",
    )


def strategy(line: SourceLine | None) -> CaptureError:
    return _at(
        line,
        "the script uses a tf.distribute strategy, which fixes one form of parallelism",
        "take it out and write the script for one device: automap-launch spreads it over all of them",
    )


def _strategy(function: Any, line: SourceLine | None) -> CaptureError:
    return strategy(line or _source(function))


def run_eagerly(source: SourceLine | None, what: str) -> CaptureError:
    return _at(
        source,
        f"{what}: nothing is compiled, so there is no step to plan",
        "take it out; a step that only works eagerly must be changed so that tf.function can compile it",
    )


def read_by_data_set(function: Any) -> CaptureError:
    return _at(
        _source(function),
        f"{_name(function)} updates a variable that a function of a data set reads (Dataset.map, Dataset.filter): the "
        "data set runs beside the training, and would read an old value",
        "use the variable in the step instead, on the batch",
    )


def two_batches(function: Any) -> CaptureError:
    return _at(
        _source(function),
        f"{_name(function)} takes more than one batch from its iterator, or none",
        "take one batch a call, or pass the batches as arguments: `train_step(next(iterator), next(iterator))`",
    )


def several_steps(steps: Sequence[StepIdentity], seen: Iterable[str]) -> CaptureError:
    return _at(
        steps[0].source,
        f"the script trains with several steps: {' and '.join(map(described, steps))}. One plan serves one step",
        f"join them into one tf.function, or {_BY_NAME}; the others then run on TensorFlow as they are\n"
        "functions seen:\n" + "\n".join(seen),
    )


def split_step(step: StepIdentity) -> CaptureError:
    return _at(
        step.source,
        f"{described(step)} takes gradients and updates no variable: the parameters are updated outside of it",
        _JOINED,
    )


def without_gradients(step: StepIdentity) -> CaptureError:
    return _at(
        step.source,
        f"{described(step)} updates trainable variables but takes no gradients, so that it may be the step or not",
        f"if it is the training step, say so: frontend.step={step.name}",
    )


def no_step(seen: Sequence[str]) -> CaptureError:
    if not seen:
        return CaptureError(
            "the script ended and called no tf.function: it trains eagerly, or not at all", hint=_JOINED
        )
    return CaptureError(
        "the script ended, and none of its functions is a training step: a tf.function that takes gradients and "
        "updates variables\n  functions seen:\n" + "\n".join(seen),
        hint=f"{_JOINED}\n  or, if one of these is the step, {_BY_NAME}",
    )


def unknown_name(name: str, seen: Sequence[str]) -> CaptureError:
    return CaptureError(
        f"frontend.step={name}: the script called no tf.function of that name that updates variables\n"
        "  functions seen:\n" + ("\n".join(seen) or "    none"),
        hint="give one of these names, or leave frontend.step out",
    )


def described(identity: StepIdentity) -> str:
    return f"`{identity.name}`" + (f" ({identity.source})" if identity.source else "")


def _operation(function: Any, operation: Any, kind: str) -> CaptureError:
    strings = "String" in kind or any(t.dtype.name == "string" for t in (*operation.inputs, *operation.outputs))
    advice = _ADVICE.get(kind, _STRINGS if strings else _DYNAMIC)
    return _at(
        line_of(operation) or _source(function),
        f"XLA cannot compile the operation {kind} ({operation.name}) in {_name(function)}",
        advice,
    )


def _name(function: Any) -> str:
    return f"`{identity_of(function.python_function).name}`"


def _source(function: Any) -> SourceLine | None:
    source = identity_of(function.python_function).source
    return source if source is not None and is_users(source.file) else None


def _first_sentence(message: str) -> str:
    line = next(iter(message.strip().splitlines()), "")
    return line[:300]


def _at(line: SourceLine | None, message: str, hint: str) -> CaptureError:
    return CaptureError(message, hint=hint, file=line.file if line else None, line=line.line if line else None)
