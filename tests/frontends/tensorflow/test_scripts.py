"""Real scripts, captured and run under plans, against TensorFlow alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.equality import F32_TOLERANCE, F64_TOLERANCE, assert_equal, compare, load_dump
from tests.frontends.tensorflow.harness import Job, Outcome, run_jobs

pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install 'automap-launch[tf]'")
pytestmark = pytest.mark.slow

PLANS = {
    "data_parallel": (8, 1, 1, 1),
    "data_and_tensor_parallel": (4, 2, 1, 1),
    "pipeline": (2, 2, 2, 2),
    "accumulation": (8, 1, 1, 4),
}
# Under which plans each script runs; batch norm needs the whole batch at once, random bits need their places.
SCRIPTS = {
    "custom_loop": tuple(PLANS),
    "fit": ("data_parallel", "data_and_tensor_parallel"),
    "fit_two_a_call": ("data_parallel",),
    "module": ("data_parallel", "pipeline"),
}
OPTIONS = {"fit_two_a_call": ("--steps-per-execution", "2")}
TOLERANCE = {"custom_loop": F64_TOLERANCE}  # others: of float32
BF16_ROUNDING = 2.0**-8
NUMBER = re.compile(r"-?\d+\.\d+")

Runs = Mapping[str, Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """All runs of all scripts, by `script.what`."""
    jobs = []
    for script, plans in SCRIPTS.items():
        step, file = str(folder / f"{script}.step"), f"{script.removesuffix('_two_a_call')}.py"
        options = list(OPTIONS.get(script, ()))
        jobs.append(Job(f"{script}.plain", "plain", file, [*options, "--dump", f"{script}.plain.npz"]))
        jobs.append(Job(f"{script}.control", "plain", file, [*options, "--dump", f"{script}.control.npz", "--permute"]))
        jobs.append(Job(f"{script}.capture", "capture", file, options, step))
        for plan in plans:
            dump = [*options, "--dump", f"{script}.{plan}.npz"]
            jobs.append(Job(f"{script}.{plan}", "run", file, dump, step, PLANS[plan]))
    return run_jobs(jobs + batch_statistics(folder) + mixed_precision(folder), folder)


def mixed_precision(folder: Path) -> list[Job]:
    """Keras's policy: variables in float32, layers in bfloat16."""
    file, step, options = "fit.py", str(folder / "mixed.step"), ["--norm", "Layer", "--policy", "mixed_bfloat16"]
    return [
        Job("mixed.plain", "plain", file, [*options, "--dump", "mixed.plain.npz"]),
        Job("mixed.control", "plain", file, [*options, "--dump", "mixed.control.npz", "--permute"]),
        Job("mixed.capture", "capture", file, options, step),
        Job(
            "mixed.data_parallel",
            "run",
            file,
            [*options, "--dump", "mixed.data_parallel.npz"],
            step,
            PLANS["data_parallel"],
        ),
        Job(
            "mixed.accumulation",
            "run",
            file,
            [*options, "--dump", "mixed.accumulation.npz"],
            step,
            PLANS["accumulation"],
        ),
    ]


def batch_statistics(folder: Path) -> list[Job]:
    """Batch norm whose statistics are of the four parts into which two devices and two micro-batches cut a batch."""
    file, step, halves = "batch_statistics.py", str(folder / "batch_statistics.step"), (2, 1, 1, 2)
    jobs = [
        Job("statistics.plain", "plain", file, ["--parts", "4", "--dump", "statistics.plain.npz"]),
        Job("statistics.capture", "capture", file, [], step),
        Job("statistics.refused", "run", file, [], step, halves),
        Job("statistics.own", "run", file, ["--dump", "statistics.own.npz"], step, halves, local_statistics=True),
    ]
    return [replace(job, floatx="float64") for job in jobs]


@pytest.mark.parametrize(("script", "plan"), [(s, p) for s, plans in SCRIPTS.items() for p in plans])
def test_equals_tensorflow_alone(runs: Runs, folder: Path, script: str, plan: str) -> None:
    name = f"{script}.{plan}"
    assert runs[f"{script}.capture"].record["outcome"] == "step", runs[f"{script}.capture"].record
    assert runs[name].code == 0, runs[name].text
    reference, control = (load_dump(folder / f"{script}.{kind}.npz") for kind in ("plain", "control"))
    assert_equal(reference, load_dump(folder / f"{name}.npz"), control, tolerance=TOLERANCE.get(script, F32_TOLERANCE))
    assert_same_text(runs[f"{script}.plain"].text, runs[name].text)


@pytest.mark.parametrize("plan", ["data_parallel", "accumulation"])
def test_mixed_precision_equals_tensorflow_alone_but_for_rounding(runs: Runs, folder: Path, plan: str) -> None:
    assert runs[f"mixed.{plan}"].code == 0, runs[f"mixed.{plan}"].text
    assert runs[f"mixed.{plan}"].report["steps"] == runs["fit.data_parallel"].report["steps"]
    dumps = (load_dump(folder / f"mixed.{kind}.npz") for kind in ("plain", plan, "control"))
    # Not only gradients that are noise may pass by the control: bfloat16 rounds all of them.
    report = compare(*dumps, tolerance=BF16_ROUNDING)
    assert not report.different, str(report)


def test_micro_batches_take_batch_statistics_of_their_own_where_allowed(runs: Runs, folder: Path) -> None:
    assert "is used for each example" in runs["statistics.refused"].report["refused"]
    assert runs["statistics.own"].code == 0, runs["statistics.own"].text
    reference = load_dump(folder / "statistics.plain.npz")
    assert_equal(reference, load_dump(folder / "statistics.own.npz"), reference, tolerance=F64_TOLERANCE)


def test_one_program_serves_capture_and_runs(runs: Runs) -> None:
    fingerprints = {runs[f"custom_loop.{plan}"].report["fingerprints"][0] for plan in PLANS}
    assert len(fingerprints) == 1
    # The last batch of an epoch is a signature of its own.
    assert len(runs["custom_loop.data_parallel"].report["signatures"]) == 2


def test_every_step_runs_under_the_plan(runs: Runs) -> None:
    assert runs["custom_loop.data_parallel"].report["steps"] == 9
    # Two epochs, two fits, two steps by hand, and another model of the same make.
    assert runs["fit.data_parallel"].report["steps"] == 14 + 5 + 7 + 2 + 14
    assert runs["module.data_parallel"].report["steps"] == 12


def assert_same_text(expected: str, got: str) -> None:
    """The same words, and numbers that are equal up to the last digit printed."""
    assert NUMBER.search(expected), "nothing was printed"
    assert NUMBER.sub("#", got) == NUMBER.sub("#", expected)
    for one, other in zip(NUMBER.findall(expected), NUMBER.findall(got), strict=True):
        digits = len(one.partition(".")[2])
        assert abs(float(one) - float(other)) <= 1.5 * 10.0**-digits, (one, other)
