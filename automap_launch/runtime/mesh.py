"""The device mesh of a layout, and its shardings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from automap_launch.plan.layout import Spec


def make_mesh(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of `axes` (size by name, major first) over `devices` (default: all, host by host), all axes automatic.

    Raises:
      ValueError: there are more or fewer devices than the mesh has places.
    """
    devices = list(jax.devices() if devices is None else devices)
    size = int(np.prod(list(axes.values())))
    if len(devices) != size:
        raise ValueError(f"the plan's mesh {dict(axes)} has {size} places, but there are {len(devices)} devices")
    grid = np.array(devices).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def sharding(mesh: Mesh, spec: Spec) -> NamedSharding:
    """The sharding of a tensor whose dim `i` is sharded by the axis `spec[i]`, or whole where that is None."""
    return NamedSharding(mesh, PartitionSpec(*spec))
