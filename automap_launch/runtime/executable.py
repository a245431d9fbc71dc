"""`Executable`: a step, compiled for a mesh with a layout's shardings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from automap_launch.plan.layout import Layout
from automap_launch.runtime import mesh as meshes
from automap_launch.runtime.jax_internals import jit, shardings_of, with_weak_type
from automap_launch.runtime.module_function import ModuleFunction, key_implementation
from automap_launch.runtime.one_in_flight import OneInFlight
from automap_launch.runtime.placement import Materialize, is_deferred, place
from automap_launch.runtime.precision import Precision
from automap_launch.train_step import Argument, Result

Leaves = Sequence[Any]


class Executable:
    """One signature of a step on real devices.

    State comes in and leaves in its stored sharding, so that the results of one step are the arguments of the next
    as they are. Where a plan computes with another sharding than it stores (ZeRO), the argument is constrained to
    its compute sharding at the entry.

    Args:
      function: the step's StableHLO (a portable artifact), or a traceable function of its flat arguments.
      arguments, results: of the step, flat.
      layout: their shardings over `mesh`. A result that replaces an argument takes that argument's stored sharding.
      mesh: a mesh with the layout's axes; see `runtime.mesh.make_mesh`.
      materialize: creates deferred values in given shardings; None: there are none.

    Raises:
      ValueError: the layout is for another number of arguments or results, or for another mesh.
    """

    def __init__(
        self,
        function: bytes | Callable[..., Leaves],
        arguments: Sequence[Argument],
        results: Sequence[Result],
        layout: Layout,
        mesh: Mesh,
        *,
        materialize: Materialize | None = None,
    ) -> None:
        if (len(layout.compute), len(layout.results)) != (len(arguments), len(results)):
            raise ValueError(
                f"the layout is for {len(layout.compute)} arguments and {len(layout.results)} results, "
                f"the step has {len(arguments)} and {len(results)}"
            )
        if dict(mesh.shape) != dict(layout.mesh):
            raise ValueError(f"the layout is for the mesh {dict(layout.mesh)}, got {dict(mesh.shape)}")
        self.arguments = tuple(arguments)
        self.results = tuple(results)
        self.layout = layout
        self.mesh = mesh
        self._materialize = materialize
        self.shardings = tuple(meshes.sharding(mesh, spec) for spec in layout.storage)
        self._seen: list[Any] = list(self.shardings)
        traced = ModuleFunction(function, arguments, results) if isinstance(function, bytes) else function
        self._jitted = self._jit(traced)
        self._in_flight = OneInFlight(tuple(mesh.devices.flat), self.results)
        self._weak_arguments = [i for i, a in enumerate(self.arguments) if a.weak_type]
        self._weak_results = [i for i, r in enumerate(self.results) if r.weak_type]
        self._precision = Precision(self.arguments, self.results)

    def __call__(self, leaves: Leaves) -> list[Any]:
        """Runs one step; returns its flat results, still being computed. `leaves` are placed first where need be."""
        self._in_flight.wait()
        with self._precision():
            results = list(self._jitted(*self.place(leaves)))
        self._in_flight.started(results)
        for index in self._weak_results:
            results[index] = with_weak_type(results[index], True)
        return results

    def lower(self) -> Any:
        """The step, lowered by JAX for this mesh but not yet compiled (`jax.stages.Lowered`)."""
        with self._precision():
            return self._jitted.lower(
                *(self._abstract(a, s) for a, s in zip(self.arguments, self.shardings, strict=True))
            )

    def place(self, leaves: Leaves) -> list[Any]:
        """Flat arguments in their stored shardings; what is there already is passed on as it is.

        Deferred values are all created at once, each device making its own shards only.

        Raises:
          ValueError: another number of leaves than the step has arguments.
        """
        if len(leaves) != len(self.arguments):
            raise ValueError(f"the step has {len(self.arguments)} arguments, got {len(leaves)}")
        placed = list(leaves)
        found = shardings_of(placed)
        away = [index for index, (is_in, seen) in enumerate(zip(found, self._seen, strict=True)) if is_in is not seen]
        deferred = [index for index in away if is_deferred(placed[index])]
        if deferred:
            self._create(placed, deferred)
            away = sorted(set(away) - set(deferred))
        for index in away:
            leaf = placed[index]
            placed[index] = place(leaf, self.shardings[index], self.arguments[index].dtype)
            if placed[index] is leaf:
                # Equivalent to the stored sharding but another object (XLA's own results): known from now on.
                self._seen[index] = found[index] or self._seen[index]
        for index in self._weak_arguments:
            # The jitted function takes strong types alone: with both it would be compiled twice.
            if getattr(placed[index], "weak_type", False):
                placed[index] = with_weak_type(placed[index], False)
        return placed

    def _create(self, placed: list[Any], deferred: Sequence[int]) -> None:
        if self._materialize is None:
            raise ValueError(f"argument {self.arguments[deferred[0]].path} is deferred, and nothing here can create it")
        values = self._materialize([placed[i] for i in deferred], [self.shardings[i] for i in deferred])
        for index, value in zip(deferred, values, strict=True):
            placed[index] = value

    def _jit(self, traced: Callable[..., Leaves]) -> Any:
        compute = [
            None if inside == outside else meshes.sharding(self.mesh, inside)
            for inside, outside in zip(self.layout.compute, self.layout.storage, strict=True)
        ]

        def train_step(*leaves: Any) -> Leaves:
            constrained = [
                leaf if target is None else jax.lax.with_sharding_constraint(leaf, target)
                for leaf, target in zip(leaves, compute, strict=True)
            ]
            return traced(*constrained)

        donated = tuple(i for i, a in enumerate(self.arguments) if a.donated)
        if self.mesh.size == 1:
            return jit(traced, donate_argnums=donated)
        return jit(
            train_step,
            in_shardings=self.shardings,
            out_shardings=[self._result_sharding(i) for i in range(len(self.results))],
            donate_argnums=donated,
        )

    def _result_sharding(self, index: int) -> Any:
        result = self.results[index]
        if result.replaces is not None and self.arguments[result.replaces].shape == result.shape:
            return self.shardings[result.replaces]
        return meshes.sharding(self.mesh, self.layout.results[index])

    @staticmethod
    def _abstract(argument: Argument, sharding: Any) -> Any:
        implementation = key_implementation(argument.dtype)
        dtype = jax.random.key(0, impl=implementation).dtype if implementation else np.dtype(argument.dtype)
        return jax.ShapeDtypeStruct(argument.shape, dtype, sharding=sharding)
