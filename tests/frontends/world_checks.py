"""Checks of one world in two processes of four devices; run by test_world.py as `world_checks RANK PORT`.

Prints the outcome of each check as JSON. Every process runs the same checks in the same order, as scripts do.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.errors import CaptureError
from automap_launch.frontends.world import enter_single_world
from automap_launch.runtime.mesh import make_mesh

RANK = int(sys.argv[1])
VALUE = np.arange(64, dtype=np.float32).reshape(8, 8)


def sharded(value: np.ndarray[Any, Any], *spec: str | None) -> jax.Array:
    sharding = jax.NamedSharding(MESH, jax.P(*spec))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def ask(name: str, module: str) -> Any:
    """What `jax.<name>()` says to code of `module`."""
    scope: dict[str, Any] = {"__name__": module, "jax": jax}
    return eval(f"jax.{name}()", scope)


def the_script_sees_one_device_and_jax_sees_all() -> None:
    for module in ("__main__", "flax.training.checkpoints", "my_model"):
        assert [ask(n, module) for n in ("device_count", "local_device_count", "process_count")] == [1, 1, 1]
        assert ask("process_index", module) == 0
        assert ask("devices", module) == ask("local_devices", module) == [ask("local_devices", "jax._src.api")[0]]
    for module in ("jax.experimental.multihost_utils", "orbax.checkpoint"):
        assert [ask(n, module) for n in ("device_count", "local_device_count", "process_count")] == [8, 4, 2]
        assert ask("process_index", module) == RANK
    assert jax.devices("cpu") == jax.devices() == jax.local_devices(backend="cpu")
    assert jax.make_mesh((1,), ("x",)).devices.tolist() == jax.devices()


def putting_on_the_device_does_not_pin() -> None:
    array = sharded(VALUE, "data", "model")
    put = jax.device_put({"a": array, "b": VALUE}, jax.devices()[0])
    assert put["a"] is array
    assert not put["b"].committed
    single = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert not jax.device_put(VALUE, single).committed
    np.testing.assert_array_equal(jax.device_get(put["a"] + put["b"]), VALUE * 2)
    assert jax.device_put(array) is array


def every_way_of_reading_gives_the_whole_value() -> None:
    array = sharded(VALUE, "data", "model")
    row = sharded(VALUE[2], "data")
    reads: dict[str, Callable[[], Any]] = {
        "np.asarray": lambda: np.asarray(array),
        "np.array": lambda: np.array(array, copy=True),
        "device_get": lambda: jax.device_get([array])[0],
        "pickle": lambda: pickle.loads(pickle.dumps(array)),
        "deepcopy": lambda: np.asarray(copy.deepcopy(array)),
        "iteration": lambda: np.stack([np.asarray(r) for r in array]),
        "unpacking": lambda: np.stack([*array]),
        "tolist": lambda: np.array(array.tolist()),
        "tobytes": lambda: np.frombuffer(array.tobytes(), np.float32).reshape(8, 8),
        "numpy function": lambda: np.concatenate([array[:4], array[4:]]),
        "item": lambda: np.array([[v.item() for v in r] for r in array]),
    }
    for name, read in reads.items():
        np.testing.assert_array_equal(read(), VALUE, err_msg=name)
    assert float(array[5, 1]) == 41.0
    assert int(row.argmax()) == 7
    assert bool((row > 3).all())
    assert f"{row[1]:.2f}" == "17.00"
    assert f"{row}" == str(jnp.asarray(VALUE[2]))
    assert repr(row) == repr(jnp.asarray(VALUE[2]))
    assert sorted(row)[0] == 16
    assert sum(row) == VALUE[2].sum()


def a_global_array_mixes_with_numpy_and_local_arrays() -> None:
    array, local = sharded(VALUE, "data", "model"), jnp.ones((8, 8))
    np.testing.assert_array_equal(jax.device_get(array @ local), VALUE @ np.ones((8, 8)))
    np.testing.assert_array_equal(jax.device_get(np.ones((8, 8), np.float32) + array), VALUE + 1)
    np.testing.assert_array_equal(jax.device_get(jnp.where(array > 3, local, 0.0)), np.where(VALUE > 3, 1, 0))
    np.testing.assert_array_equal(jax.device_get(jnp.stack([array, local])), np.stack([VALUE, np.ones((8, 8))]))
    np.testing.assert_array_equal(jax.device_get(local.at[0].set(array[1]))[0], VALUE[1])
    tree = jax.tree.map(lambda p, g: p - 0.5 * g, {"w": array}, {"w": local})
    np.testing.assert_array_equal(jax.device_get(tree)["w"], VALUE - 0.5)
    evaluate = jax.jit(lambda p, x: (x @ p).sum(0))
    for x in (np.ones((4, 8), np.float32), jnp.ones((4, 8)), jax.device_put(np.ones((4, 8)), jax.devices()[0])):
        np.testing.assert_array_equal(jax.device_get(evaluate(array, x)), 4 * VALUE.sum(0))
    key = jax.random.fold_in(jax.random.key(0), sharded(np.array(3, np.int32)))
    expected = jax.random.normal(jax.random.fold_in(jax.random.key(0), 3), (2,))
    np.testing.assert_array_equal(jax.device_get(jax.random.normal(key, (2,))), expected)


def an_array_is_seen_whole_on_the_one_device() -> None:
    array, plain = sharded(VALUE, "data", "model"), jnp.asarray(VALUE)
    for name in ("device", "is_fully_replicated", "is_fully_addressable", "sharding"):
        assert getattr(array, name) == getattr(plain, name), name
    assert array.devices() == plain.devices()
    (shard,) = array.addressable_shards
    for part in (shard.data, array.addressable_data(0), np.from_dlpack(array)):
        np.testing.assert_array_equal(np.asarray(part), VALUE)
    exported = jax.export.export(jax.jit(lambda x: x.sum(0)))(array)
    assert exported.nr_devices == 1


def a_new_array_is_put_like_another_one() -> None:
    array = sharded(VALUE, "data", "model")
    alike = jax.device_put(VALUE + 1, array.sharding)
    assert len(real_sharding(alike).device_set) == 8
    np.testing.assert_array_equal(np.asarray(alike), VALUE + 1)
    for shape in ((3, 5), (8,), ()):
        assert float(jax.device_put(np.ones(shape, np.float32), array.sharding).sum()) == np.prod(shape)
    assert jnp.zeros((3, 5), device=array.sharding).shape == (3, 5)


def real_sharding(array: jax.Array) -> Any:
    """What JAX itself sees."""
    return eval("array.sharding", {"__name__": "jax", "array": array})


def placements_on_the_one_device_say_nothing() -> None:
    array = sharded(VALUE, "data", "model")
    mesh = jax.make_mesh((1,), ("x",))
    rows = jax.NamedSharding(mesh, jax.P("x"))

    def double(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(2 * x, rows)

    with jax.set_mesh(mesh), mesh:
        results = [
            jax.jit(double, in_shardings=rows, out_shardings=jax.P())(array),
            jax.jit(double, device=jax.devices()[0])(array),
            double(jax.sharding.reshard(array, jax.P("x"))),
            double(jax.device_put(array, jax.P("x"))),
        ]
    for result in results:
        np.testing.assert_array_equal(np.asarray(result), 2 * VALUE)
    by_shard = jax.shard_map(lambda x: x, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())
    with pytest.raises(CaptureError, match="shard_map") as refusal:
        by_shard(array)
    assert refusal.value.file == __file__


def leaving_brings_back_the_real_world() -> None:
    LEAVE()
    assert (jax.device_count(), jax.process_count(), jax.process_index()) == (8, 2, RANK)
    with pytest.raises(RuntimeError, match="non-addressable"):
        np.asarray(sharded(VALUE, "data"))


CHECKS = [
    the_script_sees_one_device_and_jax_sees_all,
    putting_on_the_device_does_not_pin,
    every_way_of_reading_gives_the_whole_value,
    a_global_array_mixes_with_numpy_and_local_arrays,
    an_array_is_seen_whole_on_the_one_device,
    a_new_array_is_put_like_another_one,
    placements_on_the_one_device_say_nothing,
    leaving_brings_back_the_real_world,
]


def outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, RANK)
    MESH = make_mesh({"data": 4, "model": 2})
    LEAVE = enter_single_world()
    print(json.dumps({check.__name__: outcome(check) for check in CHECKS}), flush=True)
    jax.distributed.shutdown()
