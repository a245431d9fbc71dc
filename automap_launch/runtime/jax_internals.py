"""The private parts of JAX that the runtime stands on: a StableHLO module as a JAX primitive.

JAX has no public way to call a bare StableHLO module under `jax.jit` (`jax.export` calls only what it exported
itself), so the module is made a primitive: its abstract evaluation is the module's own function type, its lowering
merges the module into the one being built and calls it. XLA then partitions it like any other code.

`jit` is JAX's own: the public name may be replaced by a hook that watches the user's script.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import jax

from automap_launch.tested_versions import require_tested

require_tested("jax", jax.__version__)

import numpy as np  # noqa: E402
from jax._src import (  # noqa: E402
    api_util,
    compiler,
    core,
    distributed,
    pjit,
    stages,
)
from jax._src.api import jit  # noqa: E402
from jax._src.array import ArrayImpl  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402
from jax._src.lib.mlir import ir  # noqa: E402
from jax._src.lib.mlir.dialects import func as func_dialect  # noqa: E402
from jax.experimental import serialize_executable  # noqa: E402
from jax.extend.core import Primitive  # noqa: E402
from jax.extend.mlir import deserialize_portable_artifact  # noqa: E402

from automap_launch.runtime.prepared_module import prepare  # noqa: E402

# Names of MLIR element types that numpy (with ml_dtypes, which JAX registers) calls otherwise.
_ELEMENT_TYPES = {
    "i1": "bool",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}


@dataclass(frozen=True)
class Tensor:
    """Shape and numpy dtype of one argument or result of a module's `main` function."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Module:
    """A portable StableHLO artifact; two are equal when their bytes are.

    Attributes:
      artifact: the bytes.
      name: a hint for the function's name in the merged module (profiles show it).
    """

    artifact: bytes = field(repr=False, compare=False)
    name: str
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.artifact).hexdigest())


def signature(artifact: bytes) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Arguments and results of the artifact's `main` function.

    Raises:
      ValueError: it is no StableHLO artifact that this version of JAX reads, or has no `main`.
    """
    with mlir.make_ir_context():
        module = _parse(artifact)
        kind = _function_type(_main(module))
        return tuple(map(_tensor, kind.inputs)), tuple(map(_tensor, kind.results))


def bind(module: Module, outputs: tuple[Tensor, ...], arguments: Sequence[Any]) -> list[Any]:
    """Calls `module` on traced or concrete arrays, as part of the surrounding `jax.jit`."""
    return list(_call_module.bind(*arguments, module=module, outputs=outputs))


def shardings_of(leaves: Sequence[Any]) -> list[Any]:
    """Sharding of each ordinary array; None for anything else, typed PRNG keys among it.

    Called for all state at every step: the public property costs three times as much.
    """
    return list(map(getattr, leaves, repeat("_sharding"), repeat(None)))


_call_module = Primitive("stablehlo_call")
_call_module.multiple_results = True


def with_weak_type(array: jax.Array, weak: bool) -> jax.Array:
    """The same array, on the same buffers, weakly typed or not. Nothing is computed."""
    aval = array.aval.update(weak_type=weak)
    return ArrayImpl(aval, array.sharding, array._arrays, committed=array.committed, _skip_checks=True)


def evaluating() -> Any:
    """Context manager: eager code of this thread runs on the devices, whatever trace the thread began under."""
    return core.set_current_trace(core.eval_trace)


def on_device_mismatch(resolve: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[[], None]:
    """Has computations that JAX refuses, as their arrays lie on different devices, run on `resolve(arrays)` instead.

    Every computation, eager or jitted, ends in the function that is replaced here, and only after JAX's own cache of
    calls has missed: calls that JAX does not refuse cost nothing. Those on another process's device alone are kept out
    of that cache: from there JAX would copy an array of this process's own to no device at all, and crash.

    Returns:
      A function that takes it back.
    """
    original = pjit._pjit_call_impl_python
    here = threading.local()

    def call(*args: Any, **params: Any) -> Any:
        try:
            results, executable, *rest = original(*args, **params)
            arrays = [result for result in results if isinstance(result, ArrayImpl)]
            elsewhere = any(not array._sharding.has_addressable_devices for array in arrays)
            return results, None if elsewhere else executable, *rest
        except stages.DeviceAssignmentMismatchError:
            if getattr(here, "resolving", False):
                raise
        here.resolving = True
        try:
            results, *_ = original(*resolve(args), **params)
        finally:
            here.resolving = False
        # No executable is returned: JAX would call it with the arrays as they were the next time.
        return results, None, None, []

    pjit._pjit_call_impl_python = call

    def take_back() -> None:
        pjit._pjit_call_impl_python = original

    return take_back


def coordination_client() -> Any:
    """The client of the service through which processes met (`jax.distributed`): it keeps values by key for all."""
    return distributed.global_state.client


def program_key(lowered: Any) -> str:
    """Equal for two lowered functions (`jax.stages.Lowered`) that are the same program, on the same devices or not."""
    kept = sorted(lowered._lowering.compile_args["kept_var_idx"])  # arguments that are not read are not in the text
    parts = (lowered.as_text(), str(lowered.in_tree), str(lowered.out_tree), str(kept))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def for_other_devices(compiled: Any, old: Sequence[Any], new: Sequence[Any]) -> Any:
    """A compiled function (`jax.stages.Compiled`) for the devices `new`, which take the places of `old`.

    JAX can write executables out and read them in, for the devices that they were compiled for. Their device
    assignment can be given anew, which it has no public way for.

    Raises:
      jax.errors.JaxRuntimeError, ValueError, NotImplementedError: the platform cannot write or read executables.
    """
    written, in_tree, out_tree = serialize_executable.serialize(compiled)
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=len(new), device_assignment=np.array([[device.id for device in new]])
    )
    reader = _ForOtherDevices(io.BytesIO(written), new[0].client, list(new))
    reader.devices_by_id = {a.id: b for a, b in zip(old, new, strict=True)}
    reader.options = options
    executable, information, no_kwargs = reader.load()
    return jax.stages.Compiled(executable.load(), [], in_tree.unflatten(information), out_tree, no_kwargs=no_kwargs)


class _ForOtherDevices(serialize_executable._JaxPjrtUnpickler):  # type: ignore[misc]
    options: Any

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "exec":
            return self.backend.deserialize_executable(
                pid[1], executable_devices=self.execution_devices, compile_options=self.options
            )
        return super().persistent_load(pid)


def _abstract_eval(*_: Any, module: Module, outputs: tuple[Tensor, ...]) -> list[Any]:
    del module
    return [jax.core.ShapedArray(t.shape, t.dtype) for t in outputs]


_call_module.def_abstract_eval(_abstract_eval)


# Raised by a compiled function (`jax.stages.Compiled`) whose results are not finite, under `jax_debug_nans`.
NotFinite = api_util.InternalFloatingPointError


def not_finite() -> FloatingPointError:
    """What the user is told where it cannot be found in which operation a value ceased to be finite."""
    return FloatingPointError(
        "invalid value (nan or inf) encountered in the train step; "
        "run the script without automap-launch to see in which operation"
    )


def _evaluate(*_: Any, module: Module, outputs: tuple[Tensor, ...]) -> Any:
    """Only JAX's search for a NaN (`jax_debug_nans`) evaluates a function operation by operation, after it met one."""
    del module, outputs
    raise not_finite()


_call_module.def_impl(_evaluate)


def _lower(context: Any, *operands: Any, module: Module, outputs: tuple[Tensor, ...]) -> Any:
    del outputs
    module_context = context.module_context
    with module_context.context:
        callee = _parse(module.artifact)
        results = list(_function_type(_main(callee)).results)
        name = mlir.merge_mlir_modules(module_context.module, module.name, callee, module_context.symbol_table)
        return func_dialect.CallOp(results, ir.FlatSymbolRefAttr.get(name), operands).results


mlir.register_lowering(_call_module, _lower)


def _parse(artifact: bytes) -> Any:
    try:
        module = deserialize_portable_artifact(artifact)
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise ValueError(
            f"these {len(artifact)} bytes are no StableHLO artifact that jax {jax.__version__} reads: {error}"
        ) from error
    prepare(module)
    return module


def _main(module: Any) -> Any:
    for operation in module.body.operations:
        if operation.attributes["sym_name"].value == "main":
            return operation
    raise ValueError("the StableHLO module has no function `main`")


def _function_type(operation: Any) -> Any:
    return ir.FunctionType(operation.attributes["function_type"].value)


def _tensor(kind: Any) -> Tensor:
    ranked = ir.RankedTensorType(kind)
    name = str(ranked.element_type)
    if name in _ELEMENT_TYPES:
        name = _ELEMENT_TYPES[name]
    elif name.startswith("ui"):
        name = "uint" + name[2:]
    elif name.startswith("i"):
        name = "int" + name[1:]
    elif name.startswith("f8"):
        name = "float8_" + name[2:].lower()
    return Tensor(tuple(ranked.shape), np.dtype(name))


__all__ = [
    "Module",
    "NotFinite",
    "Tensor",
    "bind",
    "coordination_client",
    "evaluating",
    "for_other_devices",
    "jit",
    "not_finite",
    "on_device_mismatch",
    "program_key",
    "shardings_of",
    "signature",
    "with_weak_type",
]
