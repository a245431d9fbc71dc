"""The devices of all stages together: where arrays that lie on several stages meet.

Every process may name every array: one that lies on other processes' devices has no shards here, and JAX lets any
process compute with it. What it cannot do is combine arrays of several stages, or read one that lies elsewhere: both
need them spread over all devices first, which is a collective when there are several processes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from automap_launch.runtime.jax_internals import jit
from automap_launch.runtime.module_function import key_implementation
from automap_launch.runtime.placement import place

STAGE = "stage"

# Below this size an array is whole on every device, else cut over the stages where a dim allows it.
_WHOLE_BYTES = 2**20


def over_stages(spec: Sequence[Any]) -> PartitionSpec:
    """Of one array made of those of all stages, each in `spec`, one after the other along their first dim."""
    lead = spec[0] if spec else None
    axes = () if lead is None else (lead,) if isinstance(lead, str) else tuple(lead)
    return PartitionSpec((STAGE, *axes) if axes else STAGE, *spec[1:])


class JointMesh:
    """The meshes of a pipeline's stages as one, with the axis `stage` in front.

    In several processes all of them call the methods with the same arrays in the same order.

    Args:
      stages: their meshes, of one shape, on disjoint devices.
    """

    def __init__(self, stages: Sequence[Mesh]) -> None:
        grid = np.stack([mesh.devices for mesh in stages])
        self.mesh = Mesh(grid, (STAGE, *stages[0].axis_names), axis_types=(AxisType.Auto,) * grid.ndim)
        self.devices = frozenset(self.mesh.devices.flat)
        self._stages = {frozenset(mesh.devices.flat): number for number, mesh in enumerate(stages)}
        self.processes = len({device.process_index for device in self.devices})

    def is_elsewhere(self, array: Any) -> bool:
        """Whether some process has no part of `array`, which lies on devices of the pipeline."""
        return self._leaves_out(array.sharding)

    def is_shared(self, array: Any) -> bool:
        """Whether `array` is one array to all processes, and not one of each process's own."""
        if self.processes == 1:
            return False
        return self.is_elsewhere(array) or len({d.process_index for d in array.sharding.device_set}) > 1

    def _leaves_out(self, sharding: Any) -> bool:
        # An array of a process's own lies on one device, without a mesh.
        if self.processes == 1 or (len(sharding.device_set) == 1 and not isinstance(sharding, NamedSharding)):
            return False
        here = {device.process_index for device in sharding.device_set}
        return sharding.device_set <= self.devices and len(here) < self.processes

    def everywhere(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Each array whole on every device of the pipeline."""
        return self._spread(arrays, [NamedSharding(self.mesh, PartitionSpec())] * len(arrays))

    def spread(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Each array over all devices: as it is sharded within its stage, a large one cut over the stages besides."""
        return self._spread(arrays, [self._spread_sharding(array) for array in arrays])

    def on_stage(self, array: jax.Array, sharding: NamedSharding) -> jax.Array:
        """An array that is shared by all processes, in a sharding over one stage's devices."""
        if array.sharding == sharding:
            return array
        if self.processes == 1:
            return jax.device_put(array, sharding)
        target = NamedSharding(self.mesh, sharding.spec)
        moved = self._spread([array], [target])[0]
        own = [shard.data for shard in moved.addressable_shards if shard.device in sharding.device_set]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, own, dtype=array.dtype)

    def read(self, array: jax.Array) -> jax.Array | None:
        """The whole of an array that some process has no part of, or that lies on no mesh; None for any other."""
        on_mesh = isinstance(array.sharding, NamedSharding)
        wanted = self.is_elsewhere(array) or (self.is_shared(array) and not on_mesh)
        return self.everywhere([array])[0] if wanted else None

    def shared(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays, with those that some process has no part of spread over all devices."""
        out = list(arrays)
        away = [i for i, array in enumerate(arrays) if _is_array(array) and self.is_elsewhere(array)]
        for i, array in zip(away, self.spread([arrays[i] for i in away]), strict=True):
            out[i] = array
        return out

    def shared_sharding(self, sharding: Any) -> Any:
        """As `sharding`, on every stage alike where it leaves out a process."""
        named = isinstance(sharding, NamedSharding) and self._leaves_out(sharding)
        return NamedSharding(self.mesh, sharding.spec) if named else sharding

    def join(self, values: Sequence[Any]) -> list[Any]:
        """Arguments of one computation with all arrays that are bound to devices spread over all of them."""
        out = list(values)
        bound = [i for i, v in enumerate(values) if _is_array(v) and v.committed]
        for i, array in zip(bound, self.spread([values[i] for i in bound]), strict=True):
            out[i] = array
        return out

    def _spread(self, arrays: Sequence[jax.Array], targets: Sequence[NamedSharding]) -> list[jax.Array]:
        implementations = [key_implementation(str(array.dtype)) for array in arrays]
        plain = [jax.random.key_data(a) if key else a for a, key in zip(arrays, implementations, strict=True)]
        moved = self._moved(plain, targets)
        return [
            jax.random.wrap_key_data(a, impl=key) if key else a for a, key in zip(moved, implementations, strict=True)
        ]

    def _moved(self, arrays: Sequence[jax.Array], targets: Sequence[NamedSharding]) -> list[jax.Array]:
        if self.processes == 1:
            moved: list[jax.Array] = jax.device_put(list(arrays), list(targets))
            return moved
        out: list[Any] = list(arrays)
        lifted: list[int] = []
        for i, array in enumerate(arrays):
            if self.is_elsewhere(array):
                lifted.append(i)
            else:
                out[i] = place(array, targets[i], str(array.dtype))
        if lifted:
            inputs = [self._lifted(arrays[i]) for i in lifted]
            bring = _bring(
                self.mesh,
                tuple(a.sharding.spec for a in inputs),
                tuple(arrays[i].shape for i in lifted),
                tuple(targets[i] for i in lifted),
            )
            for i, array in zip(lifted, bring(inputs), strict=True):
                out[i] = array
        return out

    def _lifted(self, array: jax.Array) -> jax.Array:
        """An array of one stage as part of one over all stages, whose other parts are zero."""
        if frozenset(array.sharding.device_set) not in self._stages or not isinstance(array.sharding, NamedSharding):
            array = self._on_first_stage_of(array)
        spec = tuple(array.sharding.spec) if array.ndim else ()
        of_stage = array.shape or (1,)
        shape = (of_stage[0] * len(self._stages), *of_stage[1:])
        whole = NamedSharding(self.mesh, over_stages(spec))
        own = {shard.device: shard.data for shard in array.addressable_shards}
        size = whole.shard_shape(shape)
        parts = [
            own[device].reshape(size) if device in own else _zeros(size, array.dtype, device)
            for device in whole.addressable_devices
        ]
        return jax.make_array_from_single_device_arrays(shape, whole, parts, dtype=array.dtype)

    def _on_first_stage_of(self, array: jax.Array) -> jax.Array:
        """An array over several stages, whole on the devices of the first of them."""
        sharding = array.sharding
        devices = sharding.device_set
        named = isinstance(sharding, NamedSharding)
        order = list((sharding.mesh if named else self.mesh).devices.flat)
        order = [device for device in order if device in devices]
        flat = Mesh(np.array(order), ("device",))
        whole = jit(lambda x: x, out_shardings=NamedSharding(flat, PartitionSpec()))(array)
        stage = min(number for of_stage, number in self._stages.items() if of_stage <= devices)
        mesh = Mesh(self.mesh.devices[stage], self.mesh.axis_names[1:], axis_types=self.mesh.axis_types[1:])
        own = [shard.data for shard in whole.addressable_shards if shard.device in set(mesh.devices.flat)]
        target = NamedSharding(mesh, PartitionSpec())
        return jax.make_array_from_single_device_arrays(array.shape, target, own, dtype=array.dtype)

    def _spread_sharding(self, array: jax.Array) -> NamedSharding:
        sharding = array.sharding
        spec: list[Any] = [None] * array.ndim
        if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_names) <= set(self.mesh.axis_names):
            spec[: len(sharding.spec)] = sharding.spec
            for dim, axes in enumerate(sharding.spec):  # of layers on some stages: not over all of them
                over = () if axes is None else (axes,) if isinstance(axes, str) else axes
                if array.shape[dim] % math.prod(self.mesh.shape[axis] for axis in over):
                    spec[dim] = tuple(axis for axis in over if axis != STAGE) or None
        used = [() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in spec]
        key = key_implementation(str(array.dtype)) is not None
        if not key and array.nbytes > _WHOLE_BYTES and not any(STAGE in axes for axes in used):
            for dim, axes in enumerate(used):
                if array.shape[dim] % math.prod(self.mesh.shape[axis] for axis in (STAGE, *axes)) == 0:
                    spec[dim] = (STAGE, *axes)
                    break
        return NamedSharding(self.mesh, PartitionSpec(*spec))


@functools.lru_cache(maxsize=256)
def _bring(
    mesh: Mesh,
    specs: tuple[PartitionSpec, ...],
    shapes: tuple[tuple[int, ...], ...],
    targets: tuple[NamedSharding, ...],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """From arrays with one part a stage, of which all but one are zero, to that part in its target sharding."""

    def within(specs_of: PartitionSpec) -> PartitionSpec:
        lead = specs_of[0]
        rest = () if isinstance(lead, str) else tuple(lead)[1:]
        return PartitionSpec(rest or None, *specs_of[1:])

    def run(arrays: list[jax.Array]) -> list[jax.Array]:
        summed = jax.shard_map(
            lambda parts: [_sum_of_one(part) for part in parts],
            mesh=mesh,
            in_specs=(list(specs),),
            out_specs=[within(spec) for spec in specs],
            check_vma=False,
        )(arrays)
        return [array.reshape(shape) for array, shape in zip(summed, shapes, strict=True)]

    brought: Callable[[list[jax.Array]], list[jax.Array]] = jit(run, out_shardings=list(targets))
    return brought


def _sum_of_one(part: Any) -> Any:
    """The sum over the stages, of which one at most is not zero: exact, bit by bit."""
    if part.dtype == jnp.bool_:
        return lax.psum(part.astype(jnp.uint8), STAGE).astype(jnp.bool_)
    if jnp.issubdtype(part.dtype, jnp.complexfloating):
        return lax.complex(_sum_of_one(part.real), _sum_of_one(part.imag))
    bits = np.dtype(f"uint{8 * part.dtype.itemsize}")
    return lax.bitcast_convert_type(lax.psum(lax.bitcast_convert_type(part, bits), STAGE), part.dtype)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


def _zeros(shape: tuple[int, ...], dtype: Any, device: Any) -> jax.Array:
    return jax.device_put(np.zeros(shape, dtype), device)
