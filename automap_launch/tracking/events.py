"""What rank 0 tells the launcher about training: one JSON object a line over a pipe (`feed.py`).

JSON has no NaN and no infinity, yet a loss that turns NaN is exactly what a user must see. Such numbers travel as
the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, here and in `metrics.jsonl`, so that every line is strict JSON
and no value is lost; `number_of` turns them back.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class ReadyEvent:
    """Every worker has met the others and the script is about to start. `attempt` counts restarts from 0."""

    kind: ClassVar[str] = "ready"

    time: float
    processes: int
    devices: int
    attempt: int = 0


@dataclass(frozen=True)
class CompileEvent:
    """The step was compiled, which took `seconds`. `signature` tells a person for which shapes."""

    kind: ClassVar[str] = "compile"

    time: float
    seconds: float
    signature: str = ""


@dataclass(frozen=True)
class TrialEvent:
    """Plans were tried on the devices before training.

    `seconds`: a step took, by the plan's name; None for a plan that could not be run. `chosen`: the one that trains.
    """

    kind: ClassVar[str] = "trial"

    time: float
    seconds: dict[str, float | None]
    chosen: str


@dataclass(frozen=True)
class StepEvent:
    """A step is complete on the devices.

    Attributes:
      step: counted from 1 within an attempt.
      time: of completion, seconds since the epoch.
      seconds: since the completion of the step before; for the first step, since the meter was made.
      examples: rows of the global batch; None when unknown.
      tokens: batch x sequence of an integer input; None when the step has no such input.
      outputs: scalar outputs by path. May hold NaN and infinities.
      warmup: `seconds` includes a compilation, so it says nothing about throughput.
    """

    kind: ClassVar[str] = "step"

    step: int
    time: float
    seconds: float
    examples: int | None = None
    tokens: int | None = None
    outputs: dict[str, float] = field(default_factory=dict)
    warmup: bool = False


@dataclass(frozen=True)
class EndEvent:
    """The script has ended and every step was reported. `dropped`: events lost because the launcher fell behind."""

    kind: ClassVar[str] = "end"

    time: float
    steps: int
    dropped: int = 0


Event = ReadyEvent | TrialEvent | CompileEvent | StepEvent | EndEvent

_KINDS: dict[str, type[Event]] = {e.kind: e for e in (ReadyEvent, TrialEvent, CompileEvent, StepEvent, EndEvent)}


def strict(value: Any) -> Any:
    """`value` with every non-finite float, however deep in dicts and lists, as its word, and sets as sorted lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [strict(v) for v in sorted(value)]
    return value


def number_of(value: float | str) -> float:
    """The number that `strict` wrote.

    Raises:
      ValueError: `value` is some other string.
    """
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError(f"expected a number or one of {', '.join(_WORDS)}, got {value!r}")
        return _WORDS[value]
    return value


def encode(event: Event) -> bytes:
    """`event` as one line, newline included."""
    record = {"event": event.kind, **dataclasses.asdict(event)}
    return json.dumps(strict(record), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: str | bytes) -> dict[str, Any]:
    """The record of one line, as the launcher hands it on. `event` names its kind.

    Raises:
      ValueError: the line is no JSON object with a key `event`.
    """
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise ValueError(f"an event is a JSON object with the key `event`, got {line[:80]!r}")
    return record


def event_of(record: dict[str, Any]) -> Event | None:
    """The event that `record` holds; None when it is of a kind that this module does not know.

    Raises:
      TypeError: a field is missing or unknown.
      ValueError: an output is no number.
    """
    cls = _KINDS.get(record.get("event", ""))
    if cls is None:
        return None
    fields = {k: v for k, v in record.items() if k != "event"}
    if cls is StepEvent:
        fields["outputs"] = {path: number_of(v) for path, v in fields["outputs"].items()}
    return cls(**fields)
