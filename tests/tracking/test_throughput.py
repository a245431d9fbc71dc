import pytest

from automap_launch.tracking.events import ReadyEvent, StepEvent
from automap_launch.tracking.throughput import Throughput, mfu


def step(number: int, seconds: float, *, warmup: bool = False, examples: int | None = 32) -> StepEvent:
    tokens = None if examples is None else examples * 128
    return StepEvent(step=number, time=0.0, seconds=seconds, examples=examples, tokens=tokens, warmup=warmup)


def test_nothing_measured_is_null() -> None:
    assert Throughput().summary() == {
        "steps": 0,
        "step_seconds_median": None,
        "examples_per_second": None,
        "tokens_per_second": None,
        "mfu": None,
        "processes": None,
        "devices": None,
    }


def test_compilation_counts_as_a_step_but_not_as_throughput() -> None:
    throughput = Throughput()
    throughput.expect(flops=8e9, peak_flops=1e11)
    throughput.ready(ReadyEvent(time=0.0, processes=2, devices=8))
    assert throughput.step(step(1, 30.0, warmup=True)).examples_per_second is None
    for number, seconds in ((2, 0.1), (3, 0.1), (4, 5.0)):  # the last one with an evaluation before it
        throughput.step(step(number, seconds))
    assert throughput.summary() == {
        "steps": 4,
        "step_seconds_median": 0.1,
        "examples_per_second": pytest.approx(320.0),
        "tokens_per_second": pytest.approx(40960.0),
        "mfu": pytest.approx(8e9 / (0.1 * 8 * 1e11)),
        "processes": 2,
        "devices": 8,
    }


def test_rates_use_the_size_of_their_own_batch() -> None:
    throughput = Throughput()
    throughput.step(step(1, 0.1))
    assert throughput.step(step(2, 0.1, examples=3)).examples_per_second == pytest.approx(30.0)


def test_unknown_batches_have_a_time_but_no_rate() -> None:
    throughput = Throughput()
    throughput.step(step(1, 0.1, examples=None))
    summary = throughput.summary()
    assert summary["step_seconds_median"] == 0.1
    assert summary["examples_per_second"] is None
    assert summary["tokens_per_second"] is None


def test_a_restart_begins_anew() -> None:
    throughput = Throughput()
    throughput.ready(ReadyEvent(time=0.0, processes=2, devices=8))
    throughput.step(step(1, 9.0))
    throughput.ready(ReadyEvent(time=0.0, processes=2, devices=8, attempt=1))
    throughput.step(step(1, 0.5))
    assert throughput.summary()["steps"] == 1
    assert throughput.summary()["step_seconds_median"] == 0.5


@pytest.mark.parametrize(("flops", "devices", "peak"), [(None, 8, 1e12), (1e9, None, 1e12), (1e9, 8, None)])
def test_mfu_needs_all_it_is_made_of(flops: float | None, devices: int | None, peak: float | None) -> None:
    assert mfu(flops, 0.1, devices, peak) is None


def test_mfu_of_a_perfect_step_is_one() -> None:
    assert mfu(4e12, 0.5, 8, 1e12) == pytest.approx(1.0)
