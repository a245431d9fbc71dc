"""`Substitute`: see substitute_checks.py for what needs devices; here what does not."""

from __future__ import annotations

import pytest

from automap_launch.frontends.substitute import batch_size
from automap_launch.train_step import Argument
from tests.runtime import device_checks

FILE = "../frontends/substitute_checks.py"


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return device_checks.run(FILE)


@pytest.mark.parametrize("name", device_checks.names(FILE))
def test_substitute(outcome: dict[str, str], name: str) -> None:
    assert outcome[name] == "", outcome[name]


def batch(*shapes_and_dtypes: tuple[tuple[int, ...], str]) -> list[Argument]:
    state = Argument("state/w", (128, 128), "int32", "state")
    return [state, *(Argument(f"batch/{i}", s, d, "batch") for i, (s, d) in enumerate(shapes_and_dtypes))]


def test_examples_are_the_commonest_leading_dim_and_tokens_need_an_integer_sequence() -> None:
    assert batch_size(batch(((32, 10), "int32"), ((32, 10), "float32"))) == (32, 320)
    assert batch_size(batch(((7,), "float32"), ((32, 8), "float32"), ((32,), "int32"))) == (32, None)
    assert batch_size(batch(((16, 28, 28, 1), "uint8"), ((16,), "int32"))) == (16, None)
    assert batch_size(batch(((16, 1), "int32"))) == (16, None)
    assert batch_size(batch()) == (None, None)
    stacks = batch(((4, 16, 32), "float32"), ((4, 16), "int32"))
    assert batch_size(stacks, stacked={1, 2}) == (64, None)
    assert batch_size(batch(((4, 16, 10), "int32")), stacked={1}) == (64, 640)
    rows = batch(((16, 28, 28), "float32"), ((16,), "int32"))
    assert batch_size(rows, stacked={1, 2}) == (16, None)
