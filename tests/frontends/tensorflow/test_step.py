"""What is captured, what is refused, and how a variable's value and a step's results behave under a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from automap_launch.train_step import TrainStep
from tests.frontends.tensorflow.harness import SCRIPTS, Job, Outcome, run_jobs
from tests.frontends.tensorflow.test_scripts import assert_same_text

pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install 'automap-launch[tf]'")
pytestmark = pytest.mark.slow

# By the name of the refused step: words of the message, words of the hint, and the line that it cites.
REFUSED = {
    "py_function": ("EagerPyFunc", "tf.data", "y = tf.py_function"),
    "printing": ("PrintV2", "return the value and print it", "tf.print(loss)"),
    "whole_loop": ("takes batches from a data set inside the function", "one batch a call", "for x in batches"),
    "closure": ("inside the function", "`return learn(next(iterator))` reads an iterator", "learn(next(iterator))"),
    "two_batches": ("takes more than one batch", "pass the batches as arguments", "def two_batches"),
    "mask": ("whose size depends on values", "keep the size", "tf.boolean_mask"),
    "strings": ("a tensor of strings (text)", "into numbers", "def strings"),
    "gradients_alone": ("updates no variable", "optimizer.apply_gradients", "def gradients_alone"),
    "stateful_random": ("draws random numbers with RandomGamma", "in tf.data", "tf.random.gamma"),
    "counts": ("draws random numbers with RandomPoissonV2", "in tf.data", "tf.random.poisson"),
    "sizes": ("decide the sizes of tensors", "Python numbers", "def sizes"),
    "adversarial": ("several steps: `one`", "frontend.step=NAME", "def one"),
    "slow_adversarial": ("several steps: `slow`", "frontend.step=NAME", "def slow"),
    "eager": ("called no tf.function", "@tf.function", None),
    "eager_functions": ("run_functions_eagerly", "take it out", None),
    "data_set": ("a function of a data set reads", "in the step instead", "def one"),
    "strategy": ("tf.distribute strategy", "for one device", "MirroredStrategy()"),
    "eager_fit": ("run_eagerly=True", "take it out", "model.fit(batch"),
    "by_hand": ("takes no gradients", "frontend.step=by_hand", "def by_hand"),
}
# Plans under which draws without a seed are looked at.
DRAWING = {"tensor_parallel": (4, 2, 1, 1), "pipeline": (2, 2, 2, 2)}
POLICIES = ("float32", "mixed_float16")

Runs = Mapping[str, Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    jobs = [Job(f"refused.{name}", "capture", "refused.py", [name], str(folder / "none")) for name in REFUSED]
    for name in ("by_hand", "adversarial"):
        step = "other" if name == "adversarial" else name
        jobs.append(Job(f"named.{name}", "capture", "refused.py", [name], str(folder / name), step=step))
    for policy in POLICIES:
        options, step = ["--policy", policy], str(folder / policy)
        jobs.append(Job(f"{policy}.plain", "plain", "seeds.py", options))
        jobs.append(Job(f"{policy}.capture", "capture", "seeds.py", options, step))
        jobs.append(Job(f"{policy}.run", "run", "seeds.py", options, step, plan=(4, 2, 1, 1)))
    for script in ("slots", "three_models", "keras_on_jax"):
        jobs.append(Job(f"{script}.capture", "capture", f"{script}.py", [], str(folder / script)))
    for script in ("slots", "three_models"):
        jobs.append(Job(f"{script}.run", "run", f"{script}.py", [], str(folder / script), plan=(8, 1, 1, 1)))
    jobs.append(Job("dropout.capture", "capture", "dropout.py", [], str(folder / "dropout")))
    for name, plan in DRAWING.items():
        jobs.append(Job(f"dropout.{name}", "run", "dropout.py", [], str(folder / "dropout"), plan=plan))
    jobs.append(Job("lazy_tensor", "plain", "lazy_tensor.py"))
    return run_jobs(jobs, folder)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_with_the_way_out(runs: Runs, name: str) -> None:
    record = runs[f"refused.{name}"].record
    message, hint, line = REFUSED[name]
    assert record["outcome"] == "capture", record
    assert message in record["message"]
    assert hint in record["hint"]
    if line is not None:
        assert record["file"] == str(SCRIPTS / "refused.py")
        source = (SCRIPTS / "refused.py").read_text().splitlines()
        # A function's own line is that of its first decorator.
        assert line in "\n".join(source[record["line"] - 1 : record["line"] + 1])


def test_a_step_named_by_the_user(runs: Runs, folder: Path) -> None:
    assert runs["named.by_hand"].record["outcome"] == "step", runs["named.by_hand"].record
    assert TrainStep.load(folder / "by_hand").identity.name == "by_hand"
    assert [a.path for a in TrainStep.load(folder / "adversarial").arguments if a.role == "state"] == ["others"]


def test_the_captured_step(runs: Runs, folder: Path) -> None:
    assert runs["three_models.capture"].record["outcome"] == "step", runs["three_models.capture"].record
    step = TrainStep.load(folder / "three_models")
    assert step.frontend == "tensorflow"
    assert step.identity.name == "train_step"
    batch = [(a.path, a.shape, a.dtype) for a in step.arguments if a.role == "batch"]
    assert batch == [("x", (32, 64), "float32")]
    state = {a.path: a for a in step.arguments if a.role == "state"}
    assert state["sequential/dense/kernel"].shape == (64, 256)
    assert state["adam/iteration"].dtype == "int64"
    assert {"sequential/dense_1/bias", "adam/sequential_dense_kernel_momentum"} <= set(state)
    replaced = {step.arguments[r.replaces].path for r in step.results if r.replaces is not None}
    # The learning rate is state that the step reads and does not change.
    assert set(state) - replaced == {"adam/learning_rate"}
    assert {path for path, a in state.items() if a.donated} == replaced
    lines = {str(s) for s in step.sources if s is not None}
    assert lines
    assert all(line.startswith(str(SCRIPTS / "three_models.py")) for line in lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_random_numbers_are_those_of_tensorflow(runs: Runs, policy: str) -> None:
    assert runs[f"{policy}.run"].code == 0, runs[f"{policy}.run"].text
    assert_same_text(runs[f"{policy}.plain"].text, runs[f"{policy}.run"].text)
    assert runs[f"{policy}.run"].report["steps"] == 9


@pytest.mark.parametrize("plan", DRAWING)
def test_draws_without_a_seed(runs: Runs, plan: str) -> None:
    assert runs["dropout.capture"].record["outcome"] == "step", runs["dropout.capture"].record
    assert runs[f"dropout.{plan}"].code == 0, runs[f"dropout.{plan}"].text
    assert runs[f"dropout.{plan}"].report["steps"] == 8


def test_a_variable_has_one_value(runs: Runs) -> None:
    assert runs["slots.run"].code == 0, runs["slots.run"].text
    assert runs["slots.run"].report["steps"] == 16


def test_results_are_tensors(runs: Runs) -> None:
    assert runs["lazy_tensor"].code == 0, runs["lazy_tensor"].text


def test_nothing_of_a_model_is_left(runs: Runs) -> None:
    run = runs["three_models.run"]
    assert run.code == 0, run.text
    assert run.report["steps"] == 9
    assert [line for line in run.text.splitlines() if line.startswith("alive")] == ["alive 0 bytes 0"] * 3


def test_keras_on_jax_is_a_step_of_jax(runs: Runs, folder: Path) -> None:
    assert runs["keras_on_jax.capture"].record["outcome"] == "step", runs["keras_on_jax.capture"].record
    step = TrainStep.load(folder / "keras_on_jax")
    assert step.frontend == "jax"
    assert {(a.shape, a.dtype) for a in step.arguments if a.role == "batch"} == {
        ((32, 16), "float32"),
        ((32, 1), "float32"),
    }
