"""The quickstart is an ordinary script: it trains by itself, and its rows may come in any order."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

from tests.equality import F64_TOLERANCE, assert_equal, compare
from tests.recipes.runs import QUICKSTART, plain_dump, run_script

SMALL = ["--width", "64", "--hidden", "128", "--heads", "4", "--length", "32", "--layers", "2", "--eval-batches", "4"]


def test_it_learns(tmp_path):
    done = run_script(QUICKSTART, ["--steps", "60", "--log-every", "10", *SMALL], tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"step +\d+ +loss ([\d.]+)", done.stdout)]
    evaluated = float(re.search(r"eval loss ([\d.]+)", done.stdout)[1])
    assert len(losses) == 6
    assert evaluated < losses[0] < np.log(256)  # uniform guessing gives log(256)


def test_it_bears_no_trace_of_the_launcher():
    assert "automap" not in QUICKSTART.read_text().lower()


@pytest.mark.parametrize("arguments", [[], ["--dropout", "0.5"]], ids=["no dropout", "dropout"])
def test_dropout_is_off_unless_asked_for(arguments):
    """Two keys give the same loss exactly when nothing is dropped."""
    import jax

    train = load_quickstart()
    args = parse(train, [*SMALL, *arguments])
    params = train.init_params(jax.random.key(0), args)
    tokens = next(train.batches(train.load_text()[0], 2, args.length, seed=0))
    first, second = (float(train.loss_fn(params, tokens, args.dropout, jax.random.key(k))) for k in (1, 2))
    assert (first == second) == (not arguments)


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    """So that a run with permuted rows is a fair control, and 8 devices can equal one within the tolerance."""
    arguments = ["--steps", "20", *SMALL]
    env = {"JAX_ENABLE_X64": "1"}
    reference = plain_dump(QUICKSTART, arguments, tmp_path, env)
    permuted = plain_dump(QUICKSTART, [*arguments, "--permute-rows"], tmp_path, env)
    report = assert_equal(reference, permuted, permuted, tolerance=F64_TOLERANCE)
    assert report.worst.difference > 0  # the rows were permuted
    other = plain_dump(QUICKSTART, [*arguments, "--seed", "1"], tmp_path, env)
    assert not compare(reference, other, permuted, tolerance=F64_TOLERANCE).equal


def load_quickstart():
    spec = importlib.util.spec_from_file_location("quickstart_train", QUICKSTART)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(train, arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", *arguments])
        return train.parse_arguments()
