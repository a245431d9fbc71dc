import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pjit

from automap_launch.frontends import jit_hook


@pytest.fixture
def seen():
    """Top-level calls, in order; each is answered by the jitted function itself."""
    calls = []

    def handler(function, args, kwargs):
        calls.append((function.identity.name, len(args), sorted(kwargs)))
        return function.jitted(*args, **kwargs)

    uninstall = jit_hook.install(handler)
    yield calls
    uninstall()


def double(x, times=1):
    return x * 2 * times


def test_every_way_to_jit_passes_by(seen):
    @jax.jit
    def decorated(x):
        return x + 1

    @functools.partial(jax.jit, static_argnames="times")
    def partial(x, times):
        return x * times

    @jax.jit(donate_argnums=0)
    def factory(x):
        return x - 1

    @pjit.pjit
    def by_its_older_name(x):
        return x + 2

    assert decorated(1.0) == 2
    assert partial(2.0, times=3) == 6
    assert factory(jnp.ones(())) == 0
    assert by_its_older_name(1.0) == 3
    assert jax.jit(double)(3) == 6
    assert jax.jit(functools.partial(double, times=2))(3) == 12
    assert [name for name, *_ in seen] == ["decorated", "partial", "factory", "by_its_older_name", "double", "double"]
    assert seen[1][2] == ["times"]


def test_methods_are_bound(seen):
    class Trainer:
        scale = 3.0

        @functools.partial(jax.jit, static_argnums=0)
        def step(self, x):
            return x * self.scale

    assert Trainer().step(2.0) == 6
    assert seen == [("Trainer.step", 2, [])]


def test_calls_inside_a_transformation_do_not_pass_by(seen):
    inner = jax.jit(double)
    assert jax.grad(inner)(1.0) == 2
    assert jax.vmap(inner)(jnp.ones(3)).shape == (3,)
    assert jax.eval_shape(inner, jnp.ones(3)).shape == (3,)
    assert seen == []
    assert jax.jit(inner)(1.0) == 2
    assert [name for name, *_ in seen] == ["double"]


def test_it_looks_like_the_jitted_function(seen):
    function = jax.jit(double)
    assert function.__name__ == "double"
    assert function.__wrapped__ is double
    assert function.trace(1.0).jaxpr.in_avals[0].shape == ()
    assert "stablehlo.multiply" in function.lower(1.0).as_text()
    assert function.eval_shape(jnp.ones(2)).shape == (2,)
    function(1.0)
    function.clear_cache()


def test_identity_is_the_users_function_behind_library_wrappers():
    import equinox
    from flax import nnx

    names = []
    uninstall = jit_hook.install(lambda f, a, k: names.append(f.identity) or f.jitted(*a, **k))

    @nnx.jit
    def nnx_step(model, x):
        return model(x)

    @equinox.filter_jit
    def equinox_step(x, name):
        return x + len(name)

    nnx_step(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), jnp.ones((1, 1)))
    equinox_step(jnp.ones(2), "name")
    uninstall()
    names = [identity for identity in names if identity.source.file == __file__]  # libraries jit as well
    assert [identity.name for identity in names] == ["nnx_step", "equinox_step"]
    lines = Path(__file__).read_text().splitlines()
    assert lines[names[1].source.line].strip().startswith("def equinox_step")


def test_what_is_compiled_ahead_of_time_passes_by(seen):
    function = jax.jit(lambda x, times, *, mode, rate: x * times * rate, static_argnums=1, static_argnames="mode")
    lowered = function.lower(jnp.ones(2), 3, mode="a", rate=1.0)
    compiled = lowered.compile()
    assert seen == []
    assert compiled(jnp.ones(2), rate=2.0).tolist() == [6, 6]
    assert seen == [("<lambda>", 2, ["mode", "rate"])]
    assert "multiply" in lowered.as_text()
    assert compiled.memory_analysis() is not None


def test_uninstall_brings_back_the_real_one():
    real = jax.jit
    uninstall = jit_hook.install(lambda f, a, k: pytest.fail("called"))
    made = jax.jit(double)
    uninstall()
    assert jax.jit is real
    assert made(1) == 2
