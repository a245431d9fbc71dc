"""The recipes of models: scripts that train by themselves at their tiny size, and equally under the launcher."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from automap_launch.train_step import TrainStep
from tests.equality import F32_TOLERANCE, F64_TOLERANCE, assert_equal
from tests.recipes.runs import ROOT, launch, plain_dump

RECIPES = ROOT / "recipes"
T5, BERT, GPT2, VISION = (RECIPES / family / "train.py" for family in ("t5", "bert", "gpt2", "vision"))
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml") if not path.stem.startswith("quickstart"))


def load(script):
    spec = importlib.util.spec_from_file_location(f"{script.parent.name}_train", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recipe(name):
    return yaml.safe_load((RECIPES / f"{name}.yaml").read_text())


@pytest.mark.parametrize("script", [T5, BERT, GPT2, VISION], ids=lambda script: script.parent.name)
def test_a_script_bears_no_trace_of_the_launcher(script):
    assert "automap_launch" not in script.read_text().lower().replace("-", "_")


def test_there_is_a_recipe_for_every_model():
    big = {"t5_11b", "t5_3b", "t5_base", "bert_large", "bert_48", "gpt2_xl", "resnet50", "vgg19"}
    assert {*NAMES} >= big | {"t5_tiny", "bert_tiny", "gpt2_tiny", "resnet_tiny", "vgg_tiny"}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_names_its_script_and_its_cluster(name, monkeypatch):
    settings = recipe(name)
    script, arguments = RECIPES / settings["entry"]["script"], settings["entry"]["args"]
    # Trax takes half a minute to import; its recipes are run in tests/frontends/trax.
    if not name.startswith("trax_") and {"--size", "--model"} & set(arguments):
        monkeypatch.setattr("sys.argv", ["train.py", *arguments])
        parsed = load(script).parse_arguments()
        assert name.split("_")[-1] in {getattr(parsed, "size", None), *str(getattr(parsed, "model", "")).split("_")}
    cluster = settings["defaults"][0]["override /cluster"]
    assert (ROOT / "conf" / "cluster" / f"{cluster}.yaml").is_file()
    assert (cluster == "local") == (name.endswith("_tiny") or name.startswith("trax_"))


# Counted from the papers' sizes, or published: t5-11b and the others by their authors' checkpoints, BERT-large with its
# masked-LM head and without pooler and next-sentence head, GPT-2 XL, ResNet-50 and VGG-19 as in every model zoo.
PARAMETERS = {
    (T5, "11b"): 11_307_321_344,
    (T5, "3b"): 2_851_598_336,
    (T5, "base"): 222_903_552,
    (BERT, "large"): 335_174_458,
    (GPT2, "xl"): 1_557_611_200,
    (VISION, "resnet50"): 25_557_032,
    (VISION, "vgg19"): 143_667_240,
}


@pytest.mark.parametrize(
    ("script", "size"), PARAMETERS, ids=lambda value: getattr(value, "parent", Path(str(value))).name
)
def test_models_have_their_published_size(script, size):
    train = load(script)
    if script == BERT:
        from flax import nnx

        params = nnx.eval_shape(lambda: nnx.state(train.Bert(train.SIZES[size], 0.0, nnx.Rngs(0)), nnx.Param))
    elif script == GPT2:
        params = jax.eval_shape(lambda: train.init_params(jax.random.key(0), train.SIZES[size]))
    else:
        image = script == VISION
        model = train.MODELS[size]() if image else train.T5(train.SIZES[size])
        sample = [np.zeros((1, 224, 224, 3), np.float32)] if image else [np.zeros((1, 8), np.int32)] * 2
        params = jax.eval_shape(model.init, jax.random.key(0), *sample)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS[script, size]


def test_the_deepest_bert_is_bert_large_with_48_layers():
    train = load(BERT)
    assert train.SIZES["48"] == dataclasses.replace(train.SIZES["large"], layers=48)


def test_span_corruption_loses_nothing():
    """Putting the targets' spans back where their sentinels stand gives the text again."""
    train = load(T5)
    text, vocabulary = train.load_text(), 32128
    inputs, shifted, targets = next(train.batches(text, 4, 512, vocabulary, seed=0))
    assert (inputs.shape, targets.shape) == ((4, 512), (4, 114))  # as published
    np.testing.assert_array_equal(shifted[:, 1:], targets[:, :-1])
    first_sentinel = vocabulary - 100
    for row, target in zip(inputs, targets, strict=True):
        assert row[-1] == target[-1] == train.EOS
        spans = {span[0]: span[1:] for span in np.split(target[:-1], np.flatnonzero(target[:-1] >= first_sentinel))[1:]}
        restored = np.concatenate([spans[t] if t >= first_sentinel else [t] for t in row[:-1]]).astype(np.int32)
        assert restored.tobytes() in text.tobytes()
        assert min(map(len, spans.values())) >= 1


def test_masked_tokens_are_those_to_predict():
    train = load(BERT)
    text = train.load_text()
    tokens, segments, positions, targets = next(train.batches(text, 64, 128, seed=0))
    assert positions.shape == (64, round(0.15 * 128))
    restored = tokens.copy()
    np.put_along_axis(restored, positions, targets, axis=1)
    assert (np.take_along_axis(tokens, positions, axis=1) == train.MASK).mean() == pytest.approx(0.8, abs=0.05)
    assert (targets >= train.FIRST_BYTE).all()
    for row, kept, part in zip(restored, tokens, segments, strict=True):
        middle = np.flatnonzero(row == train.SEPARATE)[0]
        assert row[1:middle].tobytes() in text.tobytes()
        assert row[middle + 1 : -1].tobytes() in text.tobytes()
        np.testing.assert_array_equal(part, np.arange(128) > middle)
        assert (row != kept).sum() > 0


def test_relative_positions_fall_into_buckets():
    """Near ones exactly, far ones by their logarithm, both sides of the diagonal apart in the encoder alone."""
    train = load(T5)
    config = train.SIZES["base"]
    encoder = train.position_buckets(200, 200, config, causal=False)
    decoder = train.position_buckets(200, 200, config, causal=True)
    assert [encoder[50, 50 - d] for d in (0, 1, 7, 8, 50)] == [0, 1, 7, 8, 13]
    assert [encoder[50, 50 + d] for d in (1, 7, 8, 50)] == [17, 23, 24, 29]
    assert [decoder[150, 150 - d] for d in (0, 15, 16, 127, 150)] == [0, 15, 16, 31, 31]
    assert (decoder[np.triu_indices(200, 1)] == 0).all()


# Those that can, compute in float64: a rounding that turns a ReLU on or off is a difference that no tolerance covers.
X64 = {"JAX_ENABLE_X64": "1"}
DOUBLE = ["--dtype", "float64"]
LAUNCHED = {
    "t5": (T5, DOUBLE, (2, 4), {}, F64_TOLERANCE),
    "bert": (BERT, ["--learning-rate", "1e-3"], (4, 2), {}, F32_TOLERANCE),
    "gpt2": (GPT2, [], (2, 4), X64, F64_TOLERANCE),
    "resnet, batch norm": (
        VISION,
        ["--model", "resnet_tiny", "--learning-rate", "0.1", *DOUBLE],
        (4, 2),
        {},
        F64_TOLERANCE,
    ),
    "vgg, group norm": (VISION, ["--model", "vgg_tiny", "--norm", "group", *DOUBLE], (4, 2), {}, F64_TOLERANCE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHED)
def test_a_tiny_model_learns_and_equals_the_plain_run(name, tmp_path):
    script, arguments, (data, model), env, tolerance = LAUNCHED[name]
    arguments = [*arguments, "--steps", "10"]
    overrides = ("cluster=local", "cluster.devices=8", "search=heuristic")
    overrides += (f"search.pin.data={data}", f"search.pin.model={model}")
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(plain_dump, script, arguments, tmp_path, env)
        launched = launch(script, arguments, tmp_path, overrides=overrides, env=env)
        reference = plain.result()
    control = reference  # in float64 the tolerance alone suffices
    if tolerance == F32_TOLERANCE:
        control = plain_dump(script, [*arguments, "--permute-rows"], tmp_path, env)
    assert launched.exit_code == 0, launched.terminal
    assert launched.summary["plan"]["mesh"] == {"data": data, "model": model}
    assert np.mean(reference["loss"][-4:]) < 0.99 * np.mean(reference["loss"][:4])
    assert_equal(reference, launched.dump, control, mean_gradients(reference), tolerance=tolerance)


def mean_gradients(dump):
    """Adam's first moments by the path of their parameter: noise where the gradient was noise at every step."""
    return {path.partition("/mu/")[2]: array for path, array in dump.items() if "/mu/" in path}


@pytest.mark.slow
def test_a_recipe_for_another_cluster_says_how_to_start_it_there(tmp_path):
    """The command that it gives holds in any folder: in another one it comes as far as a machine without GPUs can."""

    def automap(*arguments, folder):
        command = [sys.executable, "-m", "automap_launch", "tracking=none", *arguments]
        env = {**os.environ, "JAX_PLATFORMS": "cpu"}
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)

    done = automap("+recipe=gpt2_xl", "search=heuristic", folder=tmp_path)
    assert done.returncode == 4, done.stderr
    (plan,) = tmp_path.glob("outputs/*/*/plan.yaml")
    assert json.loads((plan.parent / "summary.json").read_text())["plan"]["path"] == "plan.yaml"
    assert {a.dtype for a in TrainStep.load(plan.parent / "train_step").arguments if a.role == "batch"} == {"int32"}
    (line,) = re.findall(r"automap-launch mode=run .*", done.stderr)
    there = tmp_path / "there"
    there.mkdir()
    again = automap(*shlex.split(line)[1:], folder=there)
    assert again.returncode == 4, again.stderr
    assert "this machine has 0 device(s) of platform cuda" in again.stderr
