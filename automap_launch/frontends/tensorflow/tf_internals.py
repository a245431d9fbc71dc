"""Everything the TensorFlow front end takes from private modules of TensorFlow and Keras, in one place.

TensorFlow has no public way to watch calls of its functions and accesses to its variables, nor to lower a function with
the order of its flat arguments.

Importing this module imports TensorFlow: only what runs after the script has imported it may do so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from automap_launch.tested_versions import require_tested

require_tested("tensorflow", tf.__version__)

from tensorflow.python.data.ops import structured_function  # noqa: E402
from tensorflow.python.data.ops.iterator_ops import IteratorBase  # noqa: E402
from tensorflow.python.distribute import distribute_lib  # noqa: E402
from tensorflow.python.eager import context, record  # noqa: E402
from tensorflow.python.eager.polymorphic_function import autograph_util, concrete_function  # noqa: E402
from tensorflow.python.eager.polymorphic_function import polymorphic_function as polymorphic  # noqa: E402
from tensorflow.python.framework import auto_control_deps_utils, errors_impl, ops, tensor_util  # noqa: E402
from tensorflow.python.lib.io import file_io  # noqa: E402
from tensorflow.python.ops import (  # noqa: E402
    gen_io_ops,
    gen_random_ops,
    gen_resource_variable_ops,
    gen_summary_ops,
    io_ops,
    resource_variable_ops,
)
from tensorflow.python.saved_model import fingerprinting_utils  # noqa: E402
from tensorflow.python.saved_model import save as saved_model_save  # noqa: E402
from tensorflow.python.training import py_checkpoint_reader  # noqa: E402

Function = polymorphic.Function
ConcreteFunction = concrete_function.ConcreteFunction
Variable = resource_variable_ops.BaseResourceVariable
EagerTensor = ops.EagerTensor
EagerTensorBase = ops._EagerTensorBase
OpError = errors_impl.OpError
Iterator_ = IteratorBase

# Modules of Keras that are hooked as soon as they are imported.
KERAS_VARIABLES = "keras.src.backend.tensorflow.core"
KERAS_TRAINER = "keras.src.backend.tensorflow.trainer"

_KERAS_VARIABLE = "_automap_keras_variable"
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"

# Bound now: `slots` replaces what stands there.
_assign = gen_resource_variable_ops.assign_variable_op
_read = gen_resource_variable_ops.read_variable_op


def executing_eagerly() -> bool:
    """Whether the current thread runs operations, rather than building a graph."""
    return bool(context.context().executing_eagerly())


def recording_gradients() -> bool:
    """Whether a `tf.GradientTape` outside of the function being called may want its gradient."""
    return bool(record.could_possibly_record())


def functions_run_eagerly() -> bool:
    return bool(tf.config.functions_run_eagerly())


def hide_accelerators() -> None:
    """Leaves the accelerators to JAX: TensorFlow's own part of a script runs on the host."""
    for device in tf.config.get_visible_devices():
        if device.device_type != "CPU":
            tf.config.set_visible_devices([], device.device_type)


def xla_twin(function: Any, python_function: Any = None) -> Any:
    """A function of the same definition that is traced for XLA, anew for each shape; nothing ever runs it."""
    twin = function._clone(python_function)
    twin._jit_compile = True
    twin._reduce_retracing = False
    twin._omit_frequent_tracing_warning = True
    return twin


def not_converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ours that runs inside a trace, which AutoGraph is to leave as it is."""
    kept: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return kept


def converted(function: Any) -> Callable[..., Any]:
    """A function's definition as it is traced: converted by AutoGraph where the function asks for that."""
    definition: Callable[..., Any] = function._python_function
    if function._autograph:
        definition = autograph_util.py_func_from_autograph(definition, function._experimental_autograph_options)
    return definition


def trace(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The concrete function for these arguments, from the function's cache if it was traced for their types before."""
    with polymorphic.OptionalXlaContext(function._jit_compile):
        return function._get_concrete_function_garbage_collected(*args, **kwargs)


def seed() -> int | None:
    """The script's `tf.random.set_seed`; None where there was none."""
    found = context.global_seed()
    return None if found is None else int(found)


@contextlib.contextmanager
def replaced_draws(draws: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Puts functions in place of the operations that draw from a state of TensorFlow's own, by their names."""
    real = {name: getattr(gen_random_ops, name) for name in draws}
    for name, draw in draws.items():
        setattr(gen_random_ops, name, draw)
    try:
        yield
    finally:
        for name, draw in real.items():
            setattr(gen_random_ops, name, draw)


def flat_arguments(concrete: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The call's tensors in the order of the graph's inputs; variables and iterators give their handles."""
    bound = concrete.function_type.bind(*args, **kwargs)
    return list(concrete.function_type.unpack_inputs(bound))


def captures_are_fixed(concrete: Any) -> bool:
    """Whether what the graph captures is the same in every call; a capture may also be asked for anew each time."""
    return not any(callable(capture) for capture in concrete._captured_inputs)


def run(concrete: Any, flat: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Runs a graph on TensorFlow."""
    return concrete._call_flat(list(flat), list(captured))


def pack_results(concrete: Any, flat: Sequence[Any]) -> Any:
    """Flat results in the structure in which the function returns them."""
    return concrete.function_type.pack_output(list(flat))


def written_inputs(concrete: Any) -> frozenset[int]:
    """Indices of the graph's inputs that are resources to which the function writes."""
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(concrete.graph))
    return frozenset(i for i, t in enumerate(concrete.inputs) if t.dtype == tf.resource and i not in read_only)


def serialized_hlo(concrete: Any, flat: Sequence[Any], captured: Sequence[Any]) -> bytes:
    """The function as XLA compiles it for the host, before any optimization: an HLO module.

    Raises:
      tf.errors.OpError, ValueError: XLA cannot compile it.
    """
    return bytes(
        context.context().get_compiler_ir(
            device_name=_CPU,
            platform_name=None,
            function_name=concrete.name,
            flat_args=list(flat),
            captured_inputs=list(captured),
            stage="hlo_serialized",
        )
    )


def graphs(graph: Any) -> Iterator[Any]:
    """The graph and those of the functions, branches and loops in it."""
    seen: set[int] = set()

    def visit(current: Any) -> Iterator[Any]:
        if id(current) in seen:
            return
        seen.add(id(current))
        yield current
        for function in getattr(current, "_functions", {}).values():
            inner = getattr(function, "graph", None)
            if inner is not None:
                yield from visit(inner)

    return visit(graph)


def constant_value(tensor: Any) -> Any:
    """The value of a graph's tensor where it is known while tracing, else None."""
    return tensor_util.constant_value(tensor)


def frames(operation: Any) -> list[tuple[str, int]]:
    """File and line of the Python frames in which a graph's operation was made, outermost first."""
    stack = operation.traceback
    return [] if stack is None else [(frame.filename, frame.lineno) for frame in stack]


def write(handle: Any, value: Any, dtype: Any) -> None:
    """Assigns a numpy array to the variable of a handle, passing by all hooks."""
    _assign(handle, tf.constant(value, dtype=dtype))


def read(handle: Any, dtype: Any) -> Any:
    """The value of the variable of a handle as a numpy array of its own, passing by all hooks."""
    return _read(handle, dtype).numpy()


def hook_calls(answer: Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]) -> None:
    """Has `answer(function, args, kwargs, run_as_is)` answer every eager call of a `tf.function`."""
    real = Function.__call__

    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not executing_eagerly() or self._run_functions_eagerly:
            return real(self, *args, **kwargs)
        return answer(self, args, kwargs, lambda: real(self, *args, **kwargs))

    Function.__call__ = call


def hook_concrete_calls(before: Callable[[Any, list[Any], list[Any]], list[Any]]) -> None:
    """Has `before(concrete, flat, captured)` see every eager run of a graph; it returns the arguments to run it on."""
    real = ConcreteFunction._call_flat

    @functools.wraps(real)
    def call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        if executing_eagerly():
            tensor_inputs = before(self, list(tensor_inputs), list(captured_inputs))
        return real(self, tensor_inputs, captured_inputs)

    ConcreteFunction._call_flat = call_flat


def hook_variables(
    on_handle: Callable[[Any], None], on_read: Callable[[Any], Any], on_new: Callable[[Any, Any], None]
) -> None:
    """Has every access to variables pass by.

    Args:
      on_handle: called with a variable before its handle is given to eager code, which may then read or write it.
      on_read: returns a context in which a variable is read.
      on_new: called with a variable and the eager handle that it is given.
    """

    def get(self: Any) -> Any:
        if executing_eagerly():
            on_handle(self)
        return self.__dict__["_handle"]

    def put(self: Any, handle: Any) -> None:
        self.__dict__["_handle"] = handle
        if isinstance(handle, EagerTensor):
            on_new(self, handle)

    Variable._handle = property(get, put)
    real_read = Variable._read_variable_op

    @functools.wraps(real_read)
    def read_variable(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not executing_eagerly():
            return real_read(self, *args, **kwargs)
        with on_read(self):
            return real_read(self, *args, **kwargs)

    Variable._read_variable_op = read_variable


def dtype_of_handle(handle: Any) -> Any:
    """The dtype of the variable that a handle stands for."""
    return tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def replace_file_functions(make: Callable[[Any], Any]) -> None:
    """Puts `make(module)` in place of the module of native file functions that `tf.io.gfile` stands on."""
    file_io._pywrap_file_io = make(file_io._pywrap_file_io)


def replace_fingerprint_functions(make: Callable[[Any], Any]) -> None:
    """Puts `make(module)` in place of the module of native functions that read a SavedModel to identify it."""
    fingerprinting_utils.fingerprinting_pywrap = make(fingerprinting_utils.fingerprinting_pywrap)


def replace_saving_functions(make: Callable[[Any], Any]) -> None:
    """Puts `make(module)` in place of the module of native functions that begin a SavedModel: its folder is made."""
    saved_model_save.pywrap_saved_model = make(saved_model_save.pywrap_saved_model)


def hook_file_operations(wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the operations that read and write files by `wrap(name, operation)`."""
    for name in ("save_v2", "merge_v2_checkpoints", "restore_v2", "read_file", "write_file"):
        wrapped = wrap(name, getattr(gen_io_ops, name))
        for module in (gen_io_ops, io_ops):
            if hasattr(module, name):
                setattr(module, name, wrapped)
    name = "create_summary_file_writer"
    setattr(gen_summary_ops, name, wrap(name, getattr(gen_summary_ops, name)))
    py_checkpoint_reader.CheckpointReader = wrap("CheckpointReader", py_checkpoint_reader.CheckpointReader)


def raw_handle(variable: Any) -> Any:
    """A variable's handle, passing by the hooks."""
    return variable.__dict__["_handle"]


def hook_dataset_functions(on_captured: Callable[[Any], None]) -> None:
    """Calls `on_captured(tensor)` for each tensor that a function of a data set (`map`, `filter`) captures."""
    real = structured_function.StructuredFunctionWrapper.__init__

    @functools.wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        # A loop over a data set inside a function makes such functions as well, which are part of that function.
        for tensor in self.function.captured_inputs if executing_eagerly() else ():
            on_captured(tensor)

    structured_function.StructuredFunctionWrapper.__init__ = init


def hook_strategies(on_strategy: Callable[[], None]) -> None:
    """Calls `on_strategy()` whenever the script makes a `tf.distribute` strategy."""
    for kind in (distribute_lib.Strategy, distribute_lib.StrategyV1):
        real = kind.__init__

        @functools.wraps(real)
        def make(self: Any, *args: Any, real: Any = real, **kwargs: Any) -> None:
            if not isinstance(
                self, distribute_lib._DefaultDistributionStrategyV1 | distribute_lib._DefaultDistributionStrategy
            ):
                on_strategy()
            real(self, *args, **kwargs)

        kind.__init__ = make


def hook_keras_variables() -> None:
    """Lets TensorFlow's variables be asked for Keras's, which have full names. Called when those were imported."""
    from keras.src.backend.tensorflow.core import Variable as KerasVariable

    real = KerasVariable._initialize

    @functools.wraps(real)
    def initialize(self: Any, value: Any) -> None:
        real(self, value)
        self._value.__dict__[_KERAS_VARIABLE] = weakref.ref(self)

    KerasVariable._initialize = initialize


def full_name(variable: Any) -> str:
    """The path that Keras gives a variable, or else the variable's own name."""
    owner = variable.__dict__.get(_KERAS_VARIABLE, lambda: None)()
    if owner is not None:
        return str(owner.path)
    return str(variable.name).partition(":")[0]


def hook_keras_trainer(make_function: Callable[[Any, Any, Callable[[Any], Any]], Any]) -> None:
    """Has `make_function(trainer, step_function, real)` make what Keras calls for each batch of training and
    evaluation. Called when Keras's trainer for TensorFlow has been imported.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    # Keras itself is in the middle of being imported.
    require_tested("keras", importlib.metadata.version("keras"))
    real = TensorFlowTrainer._make_function

    @functools.wraps(real)
    def make(self: Any, step_function: Any) -> Any:
        return make_function(self, step_function, functools.partial(real, self))

    TensorFlowTrainer._make_function = make


_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


def nodes_in(message: str) -> list[str]:
    """Names of graph operations that an error of TensorFlow speaks of."""
    return _NODE.findall(message)
