import json
import math

import pytest

from automap_launch.tracking.events import (
    CompileEvent,
    EndEvent,
    Event,
    ReadyEvent,
    StepEvent,
    decode,
    encode,
    event_of,
    number_of,
    strict,
)


@pytest.mark.parametrize(
    "event",
    [
        ReadyEvent(time=1.5, processes=2, devices=8, attempt=1),
        CompileEvent(time=2.0, seconds=3.5, signature="f32[8,16]"),
        StepEvent(step=7, time=3.0, seconds=0.02, examples=32, tokens=4096, outputs={"loss": 1.25}, warmup=True),
        StepEvent(step=8, time=3.0, seconds=0.02),
        EndEvent(time=4.0, steps=8, dropped=2),
    ],
)
def test_an_event_survives_its_line(event: Event) -> None:
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert event_of(decode(line)) == event


def test_non_finite_outputs_survive_a_line_of_strict_json() -> None:
    outputs = {"a": math.nan, "b": math.inf, "c": -math.inf}
    line = encode(StepEvent(step=1, time=0.0, seconds=0.1, outputs=outputs))

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    record = json.loads(line, parse_constant=refuse)
    assert record["outputs"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}
    event = event_of(record)
    assert isinstance(event, StepEvent)
    assert math.isnan(event.outputs["a"])
    assert event.outputs["b"] == math.inf
    assert event.outputs["c"] == -math.inf


def test_strict_reaches_into_containers() -> None:
    assert strict({"a": [1.0, (math.nan, {3, 1})]}) == {"a": [1.0, ["NaN", [1, 3]]]}


def test_a_word_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a number or one of NaN"):
        number_of("nan?")


@pytest.mark.parametrize("line", ["[1]", '{"step": 1}', '{"event": 3}', "{"])
def test_a_line_without_an_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"event|Expecting"):
        decode(line)


def test_an_unknown_kind_is_no_event() -> None:
    assert event_of({"event": "heartbeat", "time": 1.0}) is None


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(TypeError, match="devices"):
        event_of({"event": "ready", "time": 1.0, "processes": 2})
