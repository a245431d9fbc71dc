"""Checks of Trax made compatible, with the launcher's refusals; run by test_compatibility.py in one process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from automap_launch.errors import CaptureError
from automap_launch.frontends.trax import hook
from tests.runtime import device_checks

hook.install(writes=False)
random_before = random.getstate()
start = time.process_time()

import trax  # noqa: E402
from trax import fastmath  # noqa: E402
from trax import layers as tl  # noqa: E402
from trax.supervised import trainer_lib, training  # noqa: E402

import_seconds = time.process_time() - start
imported = set(sys.modules)


def batches() -> Iterator[Any]:
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(8, 4)).astype(np.float32)
        yield x, (x.sum(1) > 0).astype(np.int32), np.ones(8, np.float32)


def loop(output_dir: str | None = None, **options: Any) -> Any:
    task = training.TrainTask(
        batches(), tl.WeightedCategoryCrossEntropy(), trax.optimizers.Adam(0.01), n_steps_per_checkpoint=2
    )
    model = tl.Serial(tl.Dense(4), tl.BatchNorm(axis=(0,)), tl.Relu(), tl.Dropout(0.1), tl.Dense(2))
    return training.Loop(model, task, output_dir=output_dir, **{"random_seed": 0, **options})


def refusal(act: Any) -> CaptureError:
    try:
        act()
    except CaptureError as error:
        return error
    raise AssertionError("it was not refused")


def check_trax_is_imported_in_seconds_and_without_tensorflow() -> None:
    assert import_seconds < 5, import_seconds
    assert not {"tensorflow", "tensorflow_datasets", "tensorflow_text", "matplotlib"} & imported


def check_nothing_but_traxs_own_modules_is_changed() -> None:
    assert not hasattr(jax, "tree_map")
    assert not hasattr(np, "asscalar")
    assert "jax.config" not in sys.modules
    assert training.jax.tree_map is jax.tree_util.tree_map
    assert training.jax.numpy is jnp


def check_what_needs_tensorflow_is_there_when_it_is_asked_for() -> None:
    for module, name in ((trax, "AsKeras"), (trax, "trax2keras"), (fastmath, "tf")):
        assert name not in vars(module)
    # In a process of its own: TensorFlow is slow, and other checks count on its absence.
    program = (
        "from automap_launch.frontends.trax import hook; hook.install(refusing=False)\n"
        "import trax, sys\n"
        "from trax import fastmath\n"
        "from trax.supervised import training\n"
        "training.init_host_and_devices(random_seed=7)\n"
        "assert 'tensorflow' not in sys.modules\n"
        "import tensorflow as tf\n"
        "drawn = float(tf.random.uniform(())); tf.random.set_seed(7)\n"
        "assert drawn == float(tf.random.uniform(())), drawn\n"
        "assert issubclass(trax.AsKeras, tf.keras.layers.Layer)\n"
        "with fastmath.use_backend('tensorflow-numpy'):\n"
        "    assert fastmath.backend_name() == 'tensorflow-numpy'\n"
        # Left open: Python must come to its end all the same.
        "from trax import jaxboard\n"
        "jaxboard.SummaryWriter(sys.argv[1]).scalar('loss', 1.0, 1)\n"
        "writer = jaxboard.SummaryWriter(sys.argv[1])\n"
        "writer.scalar('loss', 1.0, 1)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program, folder], check=True, timeout=200)


def check_tensorflow_text_and_gym_may_be_absent() -> None:
    program = (
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "absent = {'gym', 'tensorflow_text', 'tensorflow_datasets'}\n"
        "importlib.util.find_spec = lambda name, *a: None if name in absent else real(name, *a)\n"
        "for name in absent: sys.modules[name] = None\n"
        "from automap_launch.frontends.trax import hook; hook.install()\n"
        "import trax\n"
        "from trax import rl\n"
        "try:\n"
        "    rl.task.gym.make('x')\n"
        "except ImportError as error:\n"
        "    assert 'gym.make' in str(error) and 'not installed' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('there is no gym')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def check_a_loop_resumes_from_its_checkpoint() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = loop(folder)
        first.run(2)
        again = loop(folder)
    assert again.step == 2
    pairs = zip(*(fastmath.tree_flatten(each.model.weights) for each in (first, again)), strict=True)
    for trained, restored in pairs:
        np.testing.assert_array_equal(np.asarray(trained), np.asarray(restored))


def check_only_the_process_that_writes_writes_summaries() -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = training.EvalTask(batches(), [tl.WeightedCategoryAccuracy()])
        loop(folder, eval_tasks=[task]).run(2)
        names = {path.name for path in Path(folder).rglob("*")}
    assert "model.pkl.gz" in names
    assert not any(name.startswith("events.out") for name in names), names


def check_lax_cond_takes_an_operand_a_branch() -> None:
    for flag, expected in ((True, 2.0), (False, 5.0)):
        found = fastmath.cond(
            pred=jnp.asarray(flag),
            true_operand=1.0,
            true_fun=lambda x: x + 1,
            false_operand=6.0,
            false_fun=lambda x: x - 1,
        )
        assert float(found) == expected


def check_stop_gradient_leaves_python_integers_alone() -> None:
    seen = []

    def squared(x: Any) -> Any:
        length, array = fastmath.stop_gradient((3, x))
        seen.append(length)
        return x * array

    assert float(jax.jit(jax.grad(squared))(2.0)) == 2.0  # the second factor counts as a constant
    assert seen == [3]
    assert type(seen[0]) is int


def check_removed_names_compute_what_they_did() -> None:
    from trax.layers.research import position_encodings
    from trax.models.research import bert

    key = jax.random.PRNGKey(3)
    bits = position_encodings.jax.random.threefry_2x32(key, jnp.arange(4, dtype=jnp.uint32))
    assert bits.shape == (4,)
    np.testing.assert_array_equal(bits, jax.extend.random.threefry_2x32(key, jnp.arange(4, dtype=jnp.uint32)))
    assert bert.jax.tree_structure([1, 2]) == jax.tree_util.tree_structure([1, 2])
    hlo = trainer_lib.jax.xla_computation(lambda x: x + 1)(jnp.ones(3))
    assert "f32[3]" in hlo.as_hlo_text()


def check_a_stack_of_systems_is_solved_for_a_vector_each() -> None:
    """The density of independent normal variables is the product of theirs."""
    x, mu = np.asarray([[1.0, 2.0], [0.5, -1.0]], np.float32), np.zeros((2, 2), np.float32)
    sigma = np.stack([np.eye(2, dtype=np.float32)] * 2)
    expected = -0.5 * (x**2).sum(1) - np.log(2 * np.pi)
    np.testing.assert_allclose(tl.core.log_gaussian_pdf(x, mu, sigma), expected, rtol=1e-5)


def check_a_submodule_is_imported_by_from() -> None:
    assert training.jax.test_util.check_grads is not None


def check_assert_shape_still_says_where_a_layer_was_defined() -> None:
    from trax.layers.assert_shape import AssertShape

    layer = AssertShape("ab,a")
    line = sys._getframe().f_lineno - 1
    assert layer._message == f"Defined at {__file__}:{line}"


def check_the_old_trainer_passes_its_key_in_the_same_way_at_every_step() -> None:
    from trax.data import inputs

    made = inputs.Inputs(lambda _: batches(), lambda _: batches())
    trainer = trainer_lib.Trainer(
        lambda mode: tl.Serial(tl.Dense(2)),
        tl.WeightedCategoryCrossEntropy(),
        trax.optimizers.Adam,
        trax.lr.constant(0.01),
        made,
        random_seed=0,
    )
    before = jax.tree.structure(trainer._rngs)
    trainer.train_step(next(batches()))
    assert jax.tree.structure(trainer._rngs) == before


def check_layers_draw_the_same_numbers_in_every_process() -> None:
    program = (
        "import random\n{}\n"
        "from automap_launch.frontends.trax import hook; hook.install()\n"
        "from trax import layers as tl\nprint(tl.Dense(2)._rng_seed_int)"
    )
    drawn = [
        subprocess.run([sys.executable, "-c", program.format(seed)], check=True, capture_output=True).stdout
        for seed in ("", "", "random.seed(5)")
    ]
    assert drawn[0] == drawn[1]
    # `hook.install` comes before the script in the launcher, so only what happens after it counts.
    assert random.getstate() != random_before


def check_a_seed_of_its_own_for_each_run_and_one_for_all_ranks() -> None:
    def seed_in(folder: str) -> list[int]:
        os.environ["AUTOMAP_RUN_DIR"] = folder
        try:
            return [int(x) for x in training.init_host_and_devices()[3]]
        finally:
            del os.environ["AUTOMAP_RUN_DIR"]

    state = random.getstate()
    assert seed_in("/a") == seed_in("/a") != seed_in("/b")
    assert random.getstate() == state


def check_n_devices_of_another_count_means_all_devices() -> None:
    assert loop(n_devices=8).n_devices == 1


def check_the_memory_efficient_trainer_is_refused_with_the_line() -> None:
    error = refusal(lambda: loop(use_memory_efficient_trainer=True))
    assert "no train step" in error.message
    assert "spreads weights and optimizer state" in str(error.hint)
    assert error.file == __file__


def check_the_tensorflow_backend_is_refused() -> None:
    def train() -> None:
        with fastmath.use_backend(fastmath.Backend.TFNP):
            loop()

    assert "tensorflow-numpy" in refusal(train).message
    loop()  # JAX goes on


def check_weights_sharded_by_trax_are_refused() -> None:
    training.base.N_WEIGHTS_SHARDS = 2
    try:
        assert "n_weights_shards=2" in refusal(loop).message
    finally:
        training.base.N_WEIGHTS_SHARDS = 1


if __name__ == "__main__":
    device_checks.main(globals())
