"""Dataclasses from plain records: every error names the key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from automap_launch.records import RecordError, read_record


@dataclass(frozen=True)
class Inner:
    size: int
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {self.size}: it must not be below 0")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    pair: tuple[int, int] = (0, 0)
    many: tuple[Inner, ...] = ()
    rates: dict[str, float] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    note: str | None = None


def test_reads_every_kind_of_field():
    record = {
        "name": "x",
        "inner": {"size": 1},
        "pair": [1, 2],
        "many": [{"size": 3, "share": 1}],
        "rates": {"f": 2},
        "kind": "b",
        "note": None,
    }
    assert read_record(Outer, record) == Outer("x", Inner(1), (1, 2), (Inner(3, 1.0),), {"f": 2.0}, "b", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nmae": 1}, "unknown field `nmae`: did you mean `name`"),
        ({"name": 3}, "`name` is 3: expected text"),
        ({"inner": {}}, "`inner.size` is missing"),
        ({"inner": {"size": "1"}}, "`inner.size` is '1': expected a whole number"),
        ({"inner": {"size": True}}, "`inner.size` is True: expected a whole number"),
        ({"inner": {"size": 1.5}}, "`inner.size` is 1.5: expected a whole number"),
        ({"inner": {"size": -1}}, "`inner`: size is -1"),
        ({"inner": 4}, "`inner` is 4: expected a mapping"),
        ({"pair": [1]}, "`pair` has 1 items: expected 2"),
        ({"many": [{"size": 1}, {"siez": 1}]}, r"unknown field `many\[1\]\.siez`: did you mean `size`"),
        ({"rates": {"f": "fast"}}, r"`rates\.f` is 'fast': expected a number"),
        ({"kind": "c"}, "`kind` is 'c': expected one of a, b"),
        ({"note": 1}, "`note` is 1: expected text"),
        ({"name": None}, "`name` is null: expected text"),
    ],
)
def test_errors_name_the_key(change, message):
    record = {"name": "x", "inner": {"size": 1}, **change}
    with pytest.raises(RecordError, match=message):
        read_record(Outer, record)
