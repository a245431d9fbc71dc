"""Unmodified scripts, launched over 8 CPU devices, against the same scripts run plainly."""

from __future__ import annotations

import csv
import pickle
import re

import jax
import numpy as np
import pytest

from tests.equality import assert_equal
from tests.recipes.runs import QUICKSTART, launch, plain_dump, run_script, style_scripts
from tests.recipes.test_quickstart import load_quickstart, parse

pytestmark = pytest.mark.slow

STYLES = style_scripts()
LOCAL = ("cluster=local", "cluster.devices=8", "search=heuristic")
TWO_BY_FOUR = ("launcher.processes=2", "launcher.devices_per_process=4")


FOUR_BY_TWO = ("launcher.processes=4", "launcher.devices_per_process=2")


def mesh(data, model=1):
    return (f"search.pin.data={data}", f"search.pin.model={model}")


def pipeline(stages, micro_batches):
    return (f"search.pin.stages={stages}", f"search.pin.micro_batches={micro_batches}")


def runs_of(script, steps, folder):
    """The plain run and its control."""
    arguments = ["--steps", str(steps)]
    return plain_dump(script, arguments, folder), plain_dump(script, [*arguments, "--permute-rows"], folder)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The quickstart over 20 steps: plain run, control, and the gradients at the end."""
    arguments = ["--steps", "20", "--eval-batches", "1"]
    folder = tmp_path_factory.mktemp("quickstart")
    reference = plain_dump(QUICKSTART, arguments, folder)
    control = plain_dump(QUICKSTART, [*arguments, "--permute-rows"], folder)
    return arguments, reference, control, quickstart_gradients(reference)


def quickstart_gradients(dump):
    """Gradient of each parameter of a dumped quickstart, by its path in the dump, on one batch of the text."""
    train = load_quickstart()
    args = parse(train, [])
    paths, tree = jax.tree_util.tree_flatten_with_path(train.init_params(jax.random.key(0), args))
    names = ["params/" + jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    params = jax.tree.unflatten(tree, [dump[name] for name in names])
    tokens = next(train.batches(train.load_text()[0], args.batch_size, args.length, seed=7))
    gradients = jax.grad(train.loss_fn)(params, tokens, 0.0, jax.random.key(0))
    return dict(zip(names, map(np.asarray, jax.tree.leaves(gradients)), strict=True))


@pytest.mark.parametrize(
    "overrides",
    [mesh(2, 4), (*mesh(4, 2), *TWO_BY_FOUR)],
    ids=["one process with 8 devices", "two processes with 4 devices"],
)
def test_quickstart_equals_the_plain_run(quickstart, overrides, tmp_path):
    arguments, reference, control, gradients = quickstart
    launched = launch(QUICKSTART, arguments, tmp_path, overrides=(*LOCAL, *overrides))
    assert launched.exit_code == 0, launched.terminal
    assert launched.summary["train"]["devices"] == 8
    assert_equal(reference, launched.dump, control, gradients)


@pytest.mark.parametrize(
    ("stages", "overrides"),
    [(2, (*mesh(2, 2), *pipeline(2, 4))), (4, (*mesh(2), *pipeline(4, 4), *FOUR_BY_TWO))],
    ids=["one process with 8 devices", "four processes with 2 devices"],
)
def test_quickstart_as_a_pipeline_equals_the_plain_run(quickstart, stages, overrides, tmp_path):
    arguments, reference, control, gradients = quickstart
    launched = launch(QUICKSTART, arguments, tmp_path, overrides=(*LOCAL, *overrides))
    assert launched.exit_code == 0, launched.terminal
    plan = launched.summary["plan"]
    assert (plan["stages"], plan["micro_batches"]) == (stages, 4)
    assert_equal(reference, launched.dump, control, gradients)


def test_a_last_batch_of_three_rows_over_eight_devices(tmp_path):
    reference, control = runs_of(STYLES["last_batch"], 20, tmp_path)
    launched = launch(STYLES["last_batch"], ["--steps", "20"], tmp_path, overrides=(*LOCAL, *mesh(8)))
    assert launched.exit_code == 0, launched.terminal
    assert launched.summary["plan"]["mesh"]["data"] == 8
    assert_equal(reference, launched.dump, control)


def test_a_counter_a_placed_batch_and_a_folder_of_its_own(tmp_path):
    """The state's Python number stays weakly typed, so the step is compiled once and promotes as it does alone."""
    reference, control = runs_of(STYLES["counter_and_device"], 5, tmp_path)
    launched = launch(STYLES["counter_and_device"], ["--steps", "5"], tmp_path, overrides=(*LOCAL, *mesh(4, 2)))
    assert launched.exit_code == 0, launched.terminal
    assert launched.terminal.count("compiled the step") == 1
    assert_equal(reference, launched.dump, control)


def test_a_script_leaves_its_files_once(tmp_path):
    """It pickles its parameters, appends to a CSV and calls wandb.init: the files are those of the plain run."""
    script, arguments = STYLES["checkpoint_pickle_csv_wandb"], ["--steps", "10"]
    plain, launched = tmp_path / "plain", tmp_path / "launched"
    plain.mkdir()
    launched.mkdir()
    assert run_script(script, arguments, plain).returncode == 0
    done = launch(script, arguments, launched, overrides=(*LOCAL, *mesh(8), *TWO_BY_FOUR))
    assert done.exit_code == 0, done.terminal
    assert user_files(launched) == user_files(plain)
    rows = [[*csv.reader((folder / "losses.csv").open())] for folder in (plain, launched)]
    assert [int(row[0]) for row in rows[1]] == list(range(1, 11))
    np.testing.assert_allclose(*(np.array(r, float) for r in rows), rtol=1e-5)
    expected, found = (pickle.loads((folder / "params.pkl").read_bytes()) for folder in (plain, launched))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), expected, found)


def user_files(folder):
    """What a script left in its folder, the names of W&B's runs without their time and random part."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    kept = {name for name in names if not name.startswith(("outputs/", "wandb/")) and not name.endswith(".npz")}
    runs = [path for path in folder.glob("wandb/offline-run-*") if path.is_dir()]
    return sorted(kept), len(runs)


def test_a_failure_before_the_first_step_is_the_scripts_own(tmp_path):
    launched = launch(STYLES["fails_before_step"], [], tmp_path, overrides=LOCAL)
    assert launched.exit_code == 1
    error = launched.summary["error"]
    assert error["kind"] == "script"
    assert "no_such_folder/weights.msgpack" in error["message"]
    assert error["file"].endswith("fails_before_step.py")
    assert 'load_pretrained("no_such_folder/weights.msgpack")' in launched.terminal
    assert "automap_launch/" not in launched.terminal  # none of our frames


def test_a_script_without_a_jitted_function_is_refused(tmp_path):
    launched = launch(STYLES["no_jit"], [], tmp_path, overrides=LOCAL)
    assert launched.exit_code == 5
    assert launched.summary["error"]["kind"] == "capture"
    assert "jax.jit" in launched.terminal


@pytest.mark.parametrize("when", ["before", "during"])
def test_the_scripts_exit_code_is_passed_on(when, tmp_path):
    launched = launch(STYLES["exits_3"], ["--when", when], tmp_path, overrides=(*LOCAL, *mesh(8)))
    assert launched.exit_code == 3
    assert launched.summary["error"]["kind"] == "script"
    assert launched.summary["error"]["exit_code"] == 3


def test_reading_an_array_that_is_too_big_names_the_line(tmp_path):
    launched = launch(STYLES["reads_big_array"], [], tmp_path, overrides=LOCAL)
    assert launched.exit_code == 5
    error = launched.summary["error"]
    assert error["kind"] == "capture"
    line = STYLES["reads_big_array"].read_text().splitlines()[error["line"] - 1]
    assert re.search(r"float\(jnp\.linalg\.norm", line)
    assert "frontend.materialize_limit" in launched.terminal


SAME_NAME = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np

def step(train, rate, params, x):
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"]) ** 2))(params)
    moved = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
    return (moved if train else params), loss

slow, fast, evaluate = (jax.jit(functools.partial(step, *a)) for a in ((True, 0.01), (True, 0.1), (False, 0.0)))
params, losses = {"w": jnp.ones((16, 8))}, []
x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
for k in range(6):
    params, loss = (slow if k < 3 else fast)(params, x)
    params, checked = evaluate(params, x)
    losses += [loss, checked]
np.savez(sys.argv[sys.argv.index("--dump") + 1], loss=np.array([float(v) for v in losses]), w=np.asarray(params["w"]))
"""


def test_functions_of_one_definition_are_different_programs(tmp_path):
    """Two learning rates and an evaluation, all partials of one function: each runs as itself."""
    script = tmp_path / "same_name.py"
    script.write_text(SAME_NAME)
    reference = plain_dump(script, [], tmp_path)
    launched = launch(script, [], tmp_path, overrides=(*LOCAL, *mesh(4, 2), "frontend.step=step"))
    assert launched.exit_code == 0, launched.terminal
    for name, values in reference.items():
        np.testing.assert_allclose(launched.dump[name], values, rtol=1e-5, err_msg=name)


UNREAD = """
import sys
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def train_step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, loss

w = jnp.ones((32, 32)) / 32
x = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
for _ in range(400):
    w, loss = train_step(w, x)
np.savez(sys.argv[sys.argv.index("--dump") + 1], w=np.asarray(w))
"""


def test_a_loop_that_reads_nothing_does_not_stall(tmp_path):
    """Nothing holds the script back, so it would queue hundreds of steps on devices that share threads."""
    script = tmp_path / "unread.py"
    script.write_text(UNREAD)
    reference = plain_dump(script, [], tmp_path)
    launched = launch(script, [], tmp_path, overrides=(*LOCAL, *mesh(4, 2)), timeout=120)
    assert launched.exit_code == 0, launched.terminal
    np.testing.assert_allclose(launched.dump["w"], reference["w"], rtol=1e-5)
