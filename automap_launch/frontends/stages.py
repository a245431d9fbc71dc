"""A script whose state lies on the stages of a pipeline notices nothing of it.

What an array over all devices allows anyway, arrays of stages need help for: each lies on some devices, perhaps of
another process. To read one, or to save it collectively, it is spread over all devices first.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from automap_launch.frontends.import_hook import when_imported
from automap_launch.frontends.whole_arrays import read_elsewhere_with


class Joint(Protocol):
    """The devices of all stages; `runtime.JointMesh` is one."""

    def read(self, array: jax.Array) -> jax.Array | None: ...
    def shared(self, arrays: Sequence[Any]) -> list[Any]: ...
    def shared_sharding(self, sharding: Any) -> Any: ...


def see_through_stages(joint: Joint) -> None:
    """Makes arrays of stages readable on every process, and lets Orbax save and restore them."""
    read_elsewhere_with(joint.read)
    when_imported("orbax.checkpoint", functools.partial(_adapt_orbax, joint))


def _adapt_orbax(joint: Joint, orbax: types.ModuleType) -> None:
    """Orbax saves arrays that every process has a part of, and makes arrays of that kind."""
    handler = orbax.type_handlers.ArrayHandler
    serialize: Callable[..., Any] = handler.serialize
    deserialize: Callable[..., Any] = handler.deserialize

    @functools.wraps(serialize)
    async def save(self: Any, values: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return await serialize(self, joint.shared(values), *args, **kwargs)

    @functools.wraps(deserialize)
    async def restore(self: Any, infos: Any, args: Sequence[Any] | None = None) -> Any:
        return await deserialize(self, infos, None if args is None else [_placed(joint, a) for a in args])

    handler.serialize = save
    handler.deserialize = restore


def _placed(joint: Joint, args: Any) -> Any:
    sharding = getattr(args, "sharding", None)
    if not isinstance(sharding, jax.sharding.Sharding):
        return args
    return dataclasses.replace(args, sharding=joint.shared_sharding(sharding))
