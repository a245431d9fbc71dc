import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import _jax

from automap_launch.errors import CaptureError
from automap_launch.frontends import jax_internals, jit_hook, lowering
from automap_launch.frontends.deferred import DeferredTrace


@pytest.fixture(autouse=True)
def hooked():
    uninstall = jit_hook.install(lambda f, a, k: f.jitted(*a, **k))
    yield
    uninstall()


def test_arguments_and_results_in_the_modules_order():
    @functools.partial(jax.jit, static_argnums=1, static_argnames="mode", donate_argnames="params")
    def step(params, count, key, *rest, mode, rate=0.1):
        noise = jax.random.normal(key, params["w"].shape)
        return {"w": params["w"] - rate * noise * count}, {"loss": rest[0].sum()}

    args = ({"w": jnp.ones((2, 3)), "unused": jnp.ones(4)}, 5, jax.random.key(0), np.ones(3, np.float32), jnp.ones(2))
    kwargs = {"rate": 0.5, "mode": "x"}
    lowered = lowering.lower_step(step, args, kwargs, ["cpu"])
    assert [(a.path, a.shape, a.dtype, a.donated) for a in lowered.arguments] == [
        ("params/unused", (4,), "float32", True),
        ("params/w", (2, 3), "float32", True),
        ("key", (), "key<fry>", False),
        ("rest/0", (3,), "float32", False),
        ("rest/1", (2,), "float32", False),
        ("rate", (), "float32", False),
    ]
    assert [(r.path, r.shape) for r in lowered.results] == [("0/w", (2, 3)), ("1/loss", ())]
    leaves, _ = lowering.flatten_call(step, args, kwargs)
    assert leaves[1] is args[0]["w"]
    assert leaves[2] is args[2]
    assert leaves[3] is args[3]
    assert leaves[5] == 0.5
    main = next(line for line in lowered.text.splitlines() if "@main" in line)
    types = [part.split(">")[0] for part in main.split("->")[0].split("tensor<")[1:]]
    assert types == ["4xf32", "2x3xf32", "2xui32", "3xf32", "2xf32", "f32"]


def test_the_key_of_a_call_tells_statics_and_trees_apart_but_not_shapes():
    step = jax.jit(lambda x, n: x, static_argnums=1)
    key = lowering.flatten_call(step, (jnp.ones(2), 1), {})[1]
    assert key == lowering.flatten_call(step, (jnp.ones(3), 1), {})[1]
    assert hash(key) == hash(lowering.flatten_call(step, (jnp.ones(3), 1), {})[1])
    assert key != lowering.flatten_call(step, (jnp.ones(2), 2), {})[1]
    assert key != lowering.flatten_call(step, ([jnp.ones(2)], 1), {})[1]
    assert key != lowering.flatten_call(step, (), {"x": jnp.ones(2), "n": 1})[1]


def test_lowers_for_cuda_without_a_gpu():
    step = jax.jit(lambda key: jax.random.bits(key, (4,)))
    lowered = lowering.lower_step(step, (jax.random.key(0),), {}, ["cpu", "cuda"])
    assert set(lowered.modules) == {"cpu", "cuda"}
    # XLA's GPU compiler gets the rounds of threefry one by one, the CPU's a loop.
    assert "stablehlo.while" in _text(lowered.modules["cpu"])
    assert "stablehlo.while" not in _text(lowered.modules["cuda"])


def test_sources_name_the_users_lines_in_the_artifacts_order():
    def inner(x):
        return jnp.sin(x)

    def body(carry, x):
        return carry + inner(x), None

    step = jax.jit(lambda x: jax.lax.scan(body, jnp.zeros(()), x)[0])
    lowered = lowering.lower_step(step, (jnp.ones(3),), {}, ["cpu"])
    with jax_internals.jax_mlir.make_ir_context():
        module = _jax.mlir.deserialize_portable_artifact(lowered.modules["cpu"])
        names = [operation.name for operation in jax_internals.operations(module)]
    assert len(names) == len(lowered.sources)
    source = lowered.sources[names.index("stablehlo.sine")]
    assert source.file == __file__
    assert Path(__file__).read_text().splitlines()[source.line - 1].strip() == "return jnp.sin(x)"


def test_callbacks_are_found_and_lowered_for_this_process_alone():
    @jax.jit
    def step(x):
        jax.lax.cond(x.sum() > 0, lambda: jax.debug.print("x {}", x), lambda: None)
        return x

    lowered = lowering.lower_step(step, (jnp.ones(2),), {}, ["cpu", "cuda"])
    assert lowered.has_callbacks
    assert set(lowered.modules) == {"cpu"}
    assert not lowering.lower_step(jax.jit(lambda x: x), (jnp.ones(2),), {}, ["cpu"]).has_callbacks


def test_an_abstract_constant_is_refused_with_its_size():
    with DeferredTrace(1000):
        table = jnp.ones((100, 100)) * 2
        step = jax.jit(lambda x: x + table)
        with pytest.raises(CaptureError, match=r"(?s)<lambda>.*float32\[100,100\].*39.1 KiB") as error:
            lowering.lower_step(step, (jnp.ones((100, 100)),), {}, ["cpu"])
    assert "argument" in error.value.hint


_STABLE = """
import jax, jax.numpy as jnp
from automap_launch.frontends import jit_hook, lowering
jit_hook.install(lambda f, a, k: None)
@jax.jit
def step(x, key):
    jax.debug.callback(lambda v: None, x.sum())
    return x + jax.random.normal(key, x.shape)
print(lowering.lower_step(step, (jnp.ones(3), jax.random.key(0)), {}, ["cpu"]).fingerprint)
"""


def test_fingerprint_is_equal_across_processes_and_folders(tmp_path):
    prints = []
    for name in ("one", "two"):
        script = tmp_path / name / f"{name}.py"
        script.parent.mkdir()
        script.write_text("\n" * len(prints) + _STABLE)
        prints.append(subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout)
    assert len(prints[0].strip()) == 16
    assert prints[0] == prints[1]


def _text(artifact):
    with jax_internals.jax_mlir.make_ir_context():
        return str(_jax.mlir.deserialize_portable_artifact(artifact))
