"""Carrying a layout over to another signature of the step."""

from __future__ import annotations

from dataclasses import replace

from automap_launch.plan.layout import Layout
from automap_launch.runtime.signatures import fit, same_state
from automap_launch.train_step import Argument, Result, StepIdentity, TrainStep

STEP = TrainStep(
    identity=StepIdentity("train_step", None),
    frontend="jax",
    arguments=(
        Argument("state/w", (8, 4), "float32", "state", donated=True),
        Argument("batch/x", (16, 8), "float32", "batch"),
        Argument("batch/mask", (16,), "bool", "batch"),
        Argument("lr", (), "float32", "other"),
    ),
    results=(Result("0/w", (8, 4), "float32", 0), Result("1/loss", (), "float32"), Result("1/each", (16,), "float32")),
    modules={"cpu": b""},
    fingerprint="0" * 16,
)
LAYOUT = Layout(
    mesh={"data": 4, "model": 2},
    compute=((None, "model"), ("data", None), ("data",), ()),
    storage=(("data", "model"), ("data", None), ("data",), ()),
    results=(("data", "model"), (), ("data",)),
)


def bare(argument: Argument, **changes: object) -> Argument:
    return replace(argument, role="other", **changes)  # type: ignore[arg-type]


ARGUMENTS = [bare(a) for a in STEP.arguments]
RESULTS = [replace(r, replaces=None) for r in STEP.results]


def test_the_captured_signature_gets_its_roles_and_layout_back() -> None:
    fitted = fit(STEP, LAYOUT, ARGUMENTS, RESULTS)
    assert (fitted.arguments, fitted.results, fitted.layout) == (STEP.arguments, STEP.results, LAYOUT)


def test_a_last_batch_of_three_rows_stays_whole_and_state_stays_where_it_is() -> None:
    last = [ARGUMENTS[0], bare(ARGUMENTS[1], shape=(3, 8)), bare(ARGUMENTS[2], shape=(3,)), ARGUMENTS[3]]
    fitted = fit(STEP, LAYOUT, last, [*RESULTS[:2], replace(RESULTS[2], shape=(3,))])
    assert fitted.layout.storage == (("data", "model"), (None, None), (None,), ())
    assert fitted.layout.compute[0] == (None, "model")
    assert fitted.layout.results == (("data", "model"), (), (None,))
    assert fitted.arguments[1].role == "batch"


def test_a_smaller_batch_that_still_divides_stays_sharded() -> None:
    smaller = [ARGUMENTS[0], bare(ARGUMENTS[1], shape=(8, 8)), bare(ARGUMENTS[2], shape=(8,)), ARGUMENTS[3]]
    assert fit(STEP, LAYOUT, smaller, RESULTS[:2]).layout.compute[1:3] == (("data", None), ("data",))


def test_arguments_are_found_by_path_and_new_ones_stay_whole() -> None:
    shuffled = [ARGUMENTS[3], Argument("batch/extra", (16,), "float32", "other"), ARGUMENTS[1], ARGUMENTS[0]]
    fitted = fit(STEP, LAYOUT, shuffled, [Result("new", (2,), "float32"), RESULTS[0]])
    assert fitted.layout.storage == ((), (), ("data", None), ("data", "model"))
    assert fitted.results[1].replaces == 3
    assert fitted.layout.results == ((), ("data", "model"))


def test_a_tensor_of_another_rank_stays_whole() -> None:
    fitted = fit(STEP, LAYOUT, [bare(ARGUMENTS[1], shape=(16,))], [])
    assert fitted.layout.compute == ((),)


def test_state_is_the_same_only_with_all_paths_shapes_and_dtypes() -> None:
    assert same_state(STEP, ARGUMENTS)
    assert same_state(STEP, [ARGUMENTS[0]])
    assert not same_state(STEP, ARGUMENTS[1:])
    assert not same_state(STEP, [bare(ARGUMENTS[0], shape=(8, 5))])
    assert not same_state(STEP, [bare(ARGUMENTS[0], dtype="bfloat16")])
