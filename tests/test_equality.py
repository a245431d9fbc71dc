"""The equality harness must fail for a wrong run and pass for a right one, on a model with a noise gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.equality import F64_TOLERANCE, assert_equal, compare, load_dump

ROWS, LENGTH, WIDTH, STEPS, LEARNING_RATE = 8, 6, 5, 20, 0.1


def forward(params, x):
    """One attention head over a sequence. x: [rows, length, width]. The key's bias cancels in the softmax."""
    query, key = x @ params["query/w"], x @ params["key/w"] + params["key/b"]
    scores = query @ key.swapaxes(1, 2) * x.dtype.type(WIDTH**-0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights, query, key, weights @ x


def loss_and_gradients(params, x, y):
    weights, query, key, mixed = forward(params, x)
    predicted = (mixed @ params["out/w"])[..., 0]
    error = predicted - y
    d_predicted = 2 * error[..., None] / error.size
    d_mixed = d_predicted @ params["out/w"].T
    d_weights = d_mixed @ x.swapaxes(1, 2)
    d_scores = (
        weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True)) / np.sqrt(np.asarray(WIDTH, x.dtype))
    )
    d_query, d_key = d_scores @ key, d_scores.swapaxes(1, 2) @ query
    return np.mean(error**2), {
        "query/w": np.einsum("bti,btj->ij", x, d_query),
        "key/w": np.einsum("bti,btj->ij", x, d_key),
        "key/b": d_key.sum((0, 1)),
        "out/w": np.einsum("bti,btj->ij", mixed, d_predicted),
    }


def train(dtype=np.float32, *, permutation=None, drop_last_row=False, gradient_scale=1.0, wrong_at=None):
    """A run as path -> array with one loss a step, and the gradients of its last step. Sign descent, like Adam's
    first step, lets a noise gradient move its parameter as much as any other."""
    rng, order = np.random.default_rng(0), np.random.default_rng(permutation)
    shapes = {"query/w": (WIDTH, WIDTH), "key/w": (WIDTH, WIDTH), "key/b": (WIDTH,), "out/w": (WIDTH, 1)}
    params = {path: rng.normal(size=shape).astype(dtype) for path, shape in shapes.items()}
    losses = []
    for step in range(STEPS):
        x = rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(dtype)
        y = x.mean((1, 2))[:, None].repeat(LENGTH, 1)
        if permutation is not None:
            shuffled = order.permutation(ROWS)
            x, y = x[shuffled], y[shuffled]
        if drop_last_row:
            x, y = x[:-1], y[:-1]
        loss, gradients = loss_and_gradients(params, x, y)
        losses.append(loss + (wrong_at == step) * 1e-4)
        for path, gradient in gradients.items():
            if path == "key/b":
                params[path] = params[path] - dtype(1e-3) * np.sign(gradient)
            else:
                params[path] = params[path] - dtype(LEARNING_RATE * gradient_scale) * gradient
    return {"loss": np.asarray(losses), **{f"params/{path}": value for path, value in params.items()}}, gradients


@pytest.fixture(scope="module")
def runs():
    reference, gradients = train()
    return {"reference": reference, "gradients": gradients, "control": train(permutation=1)[0]}


def check(runs, candidate):
    return compare(runs["reference"], candidate, runs["control"], runs["gradients"])


def test_a_run_whose_rows_are_summed_in_another_order_is_equal(runs):
    report = check(runs, train(permutation=2)[0])
    assert report.equal, str(report)


def test_a_tensor_that_passes_by_its_control_alone_is_listed_and_is_noise(runs):
    report = check(runs, runs["control"])
    assert report.by_control == ("params/key/b",)
    assert report.not_noise == ()


def test_a_dropped_row_is_found(runs):
    report = check(runs, train(drop_last_row=True)[0])
    assert not report.equal
    assert "params/out/w" in {tensor.path for tensor in report.different}


@pytest.mark.parametrize("scale", [8.0, 1 / 8, 1.001])
def test_a_scaled_gradient_is_found(runs, scale):
    report = check(runs, train(gradient_scale=scale)[0])
    assert {"params/query/w", "params/out/w"} <= {tensor.path for tensor in report.different}


def test_one_wrong_step_of_a_metric_is_found(runs):
    report = check(runs, train(wrong_at=11)[0])
    assert [tensor.path for tensor in report.different] == ["loss[step 12]"]


def test_a_tensor_may_not_hide_behind_its_control_when_its_gradient_is_real(runs):
    loose = dict(runs["control"])
    loose["params/out/w"] = runs["reference"]["params/out/w"] + 1
    candidate = dict(runs["reference"])
    candidate["params/out/w"] = runs["reference"]["params/out/w"] + 1
    report = compare(runs["reference"], candidate, loose, runs["gradients"])
    assert [path for path, _ in report.not_noise] == ["params/out/w"]
    assert not report.equal


def test_without_gradients_nothing_passes_by_its_control(runs):
    report = compare(runs["reference"], runs["control"], runs["control"])
    (found,) = report.not_noise
    assert found[0] == "params/key/b"
    assert math.isnan(found[1])
    with pytest.raises(AssertionError, match=r"params/key/b.*gradient is not known"):
        assert_equal(runs["reference"], runs["control"], runs["control"])


def test_optimizer_state_takes_the_gradient_of_its_parameter(runs):
    def with_moments(run):
        return run | {"opt_state/0/mu/key/b": run["params/key/b"] * 1e-3}

    report = compare(
        with_moments(runs["reference"]),
        with_moments(runs["control"]),
        with_moments(runs["control"]),
        runs["gradients"],
    )
    assert "opt_state/0/mu/key/b" in report.by_control
    assert report.equal


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_different_even_when_the_control_has_it_too(runs, value):
    broken = {path: array.copy() for path, array in runs["reference"].items()}
    broken["params/out/w"][0] = value
    report = compare(runs["reference"], broken, broken, runs["gradients"])
    assert [tensor.path for tensor in report.different] == ["params/out/w"]
    assert not compare(broken, broken, broken, runs["gradients"]).equal


def test_float64_runs_hold_the_tighter_tolerance():
    reference, gradients = train(np.float64)
    control, _ = train(np.float64, permutation=1)
    assert_equal(reference, control, control, gradients, tolerance=F64_TOLERANCE)
    in_float32, _ = train(np.float32)
    report = compare(reference, in_float32, control, gradients, tolerance=F64_TOLERANCE)
    assert not report.equal


def test_runs_of_another_structure_are_refused(runs):
    short = {**runs["reference"], "loss": runs["reference"]["loss"][:-1]}
    with pytest.raises(ValueError, match=r"candidate lacks \['loss\[step 20\]'\]"):
        check(runs, short)
    reshaped = {**runs["reference"], "params/key/b": np.zeros((WIDTH, 1))}
    with pytest.raises(ValueError, match=r"params/key/b has shape \(5, 1\) in the candidate, \(5,\)"):
        check(runs, reshaped)


def test_a_dump_is_read_back(tmp_path):
    np.savez(tmp_path / "run.npz", **{"params/w": np.arange(3.0), "loss": np.ones(2)})
    dump = load_dump(tmp_path / "run.npz")
    assert dump.keys() == {"params/w", "loss"}
    np.testing.assert_array_equal(dump["params/w"], [0, 1, 2])
