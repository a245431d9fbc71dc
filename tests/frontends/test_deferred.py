import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.frontends.deferred import DeferredTrace, evaluate, is_deferred, materialize

SIZE = 512
LIMIT = 64 * 1024


@pytest.fixture
def trace():
    with DeferredTrace(LIMIT) as trace:
        yield trace


def make_params():
    """Eager, jitted, with custom derivatives, with keys: what scripts build state with."""
    key, other = jax.random.split(jax.random.key(0))
    w = jax.random.normal(key, (SIZE, SIZE)) * 0.1
    return {
        "w": w,
        "relu": jax.nn.relu(w) + 1,
        "jitted": jax.jit(lambda k: jax.random.uniform(k, (SIZE, SIZE)))(other),
        "zeros": jnp.zeros_like(w),
        "keys": jax.random.split(other, SIZE * SIZE),
        "host": jnp.asarray(np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)),
        "small": jnp.arange(3),
    }


def test_large_results_are_recorded_and_small_ones_made(trace):
    params = make_params()
    assert [name for name, value in params.items() if not is_deferred(value)] == ["small"]
    assert all(isinstance(value, jax.Array) for value in params.values())
    assert params["w"].shape == (SIZE, SIZE)
    assert params["w"].nbytes == SIZE * SIZE * 4
    assert is_deferred(params["w"].sum())  # made of one that was not made
    assert is_deferred(jax.grad(lambda w: (w**2).sum())(params["w"]))


def test_a_flax_nnx_module_made_under_the_trace_can_be_changed_after_it():
    from flax import nnx
    from flax.errors import TraceContextError

    before = nnx.Param(jnp.zeros(3))
    with DeferredTrace(LIMIT):
        inside = nnx.Linear(SIZE, SIZE, rngs=nnx.Rngs(0))
        before[...] = jnp.ones(3)
        with pytest.raises(TraceContextError):
            jax.jit(inside.kernel.set_value)(jnp.ones((SIZE, SIZE)))
    inside.kernel[...] = 2 * inside.kernel[...]
    inside.bias[...] = inside.bias[...] + 1
    np.testing.assert_array_equal(before[...], np.ones(3))
    np.testing.assert_array_equal(inside.bias[...], np.ones(SIZE))
    np.testing.assert_array_equal(inside.kernel[...], 2 * nnx.Linear(SIZE, SIZE, rngs=nnx.Rngs(0)).kernel[...])


def test_materialized_values_equal_the_plain_ones_in_their_shardings():
    plain = make_params()
    with DeferredTrace(LIMIT):
        params = make_params()
    mesh = jax.make_mesh((8,), ("x",))
    shardings = [
        jax.sharding.NamedSharding(
            mesh,
            jax.sharding.PartitionSpec("x") if value.ndim and value.shape[0] % 8 == 0 else jax.sharding.PartitionSpec(),
        )
        for value in params.values()
    ]
    made = materialize(list(params.values()), shardings)
    for (name, expected), value, sharding in zip(plain.items(), made, shardings, strict=True):
        assert value.sharding == sharding, name
        numbers = [jax.random.key_data(x) if name == "keys" else x for x in (expected, value)]
        np.testing.assert_array_equal(*numbers, err_msg=name)
    assert made[0].addressable_shards[0].data.shape == (SIZE // 8, SIZE)
    assert not is_deferred(params["w"])
    np.testing.assert_array_equal(jnp.asarray(params["w"]) + 1, plain["w"] + 1)


def test_values_are_made_when_read_and_after_the_trace(trace):
    w = jnp.full((SIZE, SIZE), 2.0)
    total = w.sum()
    assert float(total) == total.item() == SIZE * SIZE * 2
    assert f"{w[0, 0]:.1f}" == "2.0"
    assert bool(w[0, 0] > 1)
    assert np.asarray(w)[3, 3] == 2
    assert pickle.loads(pickle.dumps(w))[0, 0] == 2
    unread = w * 3
    trace.stop()
    assert float(jnp.max(unread)) == 6
    assert float(jax.jit(jnp.min)(w * 2)) == 4


def test_what_reads_no_number_makes_nothing(trace):
    w = jnp.full((SIZE, SIZE), 2.0)
    jax.block_until_ready({"w": w})
    assert w.block_until_ready() is w
    assert jax.device_get(w) is w
    assert copy.deepcopy(w) is w
    assert repr(w) == f"Array(shape=({SIZE}, {SIZE}), dtype=float32)"
    assert w.devices() == {jax.local_devices()[0]}
    assert is_deferred(w)


def test_reading_asks_the_owner_of_the_trace():
    asked = []
    with DeferredTrace(LIMIT, on_read=lambda value: asked.append(value) or np.float32(7)):
        total = jnp.ones((SIZE, SIZE)).sum()
        assert float(total) == 7
    assert len(asked) == 1
    assert asked[0] is total


def test_many_arrays_of_medium_size_are_recorded_too(trace):
    made = [jnp.full((128, 64), float(i)) for i in range(100)]
    assert not is_deferred(made[0])
    assert is_deferred(made[-1])
    assert not is_deferred(jnp.ones(3))


def test_what_was_recorded_outlives_the_donation_of_its_inputs(trace):
    small = jnp.full(3, 2.0)
    large = jnp.ones((SIZE, SIZE)) * small[0] + small.sum()
    small = jax.jit(lambda x: x + 1, donate_argnums=0)(small)
    assert small[0] == 3
    assert float(materialize([large])[0][0, 0]) == 8


def test_a_recorded_history_may_be_long(trace):
    w = jnp.zeros((SIZE, SIZE))
    for _ in range(3000):
        w = -w
    assert float(evaluate([w + 1])[0][0, 0]) == 1


def test_a_call_can_be_recorded_whatever_its_size(trace):
    step = jax.jit(lambda x: x + 1)
    with trace.deferring("mine"):
        result = step(1.0)
    assert is_deferred(result)
    assert result.node.tag == "mine"
    assert float(result) == 2
    assert not is_deferred(step(1.0))
