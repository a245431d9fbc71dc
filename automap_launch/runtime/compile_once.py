"""Equal parts of different stages are compiled once, and loaded for the devices of each stage.

The layers of a model are alike, and so are the stages that they make: the parts of the inner stages of a pipeline are
the same programs on other devices. An executable is bound to its devices, but it can be written out and read in for
others, in a hundredth of the time that compiling takes. Tracing and lowering, which say whether two parts are the
same, are done for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from automap_launch.runtime.jax_internals import NotFinite, for_other_devices, not_finite, program_key

_BELOW_A_BYTE = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")


@dataclass(frozen=True)
class _Known:
    compiled: Any
    devices: tuple[Any, ...]


class CompileOnce:
    """Compiles the functions of one executable's stages.

    Attributes:
      compilations: programs compiled so far. loaded: programs taken from another stage so far.
    """

    def __init__(self) -> None:
        self.compilations = 0
        self.loaded = 0
        self._known: dict[str, _Known] = {}

    def function(self, jitted: Any, mesh: Mesh) -> Callable[..., Any]:
        """`jitted`, a function under `jax.jit` on `mesh`, as a function that is compiled at its first call; later calls
        have arguments of the same shapes and shardings."""
        return _Function(self, jitted, tuple(mesh.devices.flat))

    def compile(self, jitted: Any, devices: tuple[Any, ...], arguments: Sequence[Any]) -> Any:
        if any(str(leaf.dtype) in _BELOW_A_BYTE for leaf in jax.tree.leaves(arguments)):
            return jitted  # its compiled form refuses such arrays: JAX takes their layout for another than its own
        lowered = jitted.lower(*arguments)
        key = program_key(lowered)
        known = self._known.get(key)
        if known is not None:
            try:
                compiled = for_other_devices(known.compiled, known.devices, devices)
            except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError):
                pass  # a platform whose executables cannot be written out: compiled again
            else:
                self.loaded += 1
                return compiled
        compiled = lowered.compile()
        self.compilations += 1
        # Not what spans processes, nor what reads and makes nothing, which runs on any device.
        if set(compiled.runtime_executable().local_devices()) == set(devices):
            self._known.setdefault(key, _Known(compiled, devices))
        return compiled


class _Function:
    def __init__(self, owner: CompileOnce, jitted: Any, devices: tuple[Any, ...]) -> None:
        self._owner = owner
        self._jitted = jitted
        self._devices = devices
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self._compiled is None:
            self._compiled = self._owner.compile(self._jitted, self._devices, arguments)
        try:
            return self._compiled(*arguments)
        except NotFinite:
            raise not_finite() from None

    def lower(self, *arguments: Any) -> Any:
        """As `jax.jit` has it."""
        return self._jitted.lower(*arguments)
