"""Gradient accumulation on eight devices: see accumulation_checks.py, each of whose checks is a test here."""

from __future__ import annotations

import pytest

from tests.runtime import device_checks

FILE = "accumulation_checks.py"


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return device_checks.run(FILE)


@pytest.mark.parametrize("name", device_checks.names(FILE))
def test_accumulation(outcome: dict[str, str], name: str) -> None:
    assert outcome[name] == "", outcome[name]
