"""`build_executable` on eight devices: see build_checks.py, each of whose checks is a test here."""

from __future__ import annotations

import pytest

from tests.runtime import device_checks

FILE = "build_checks.py"


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return device_checks.run(FILE)


@pytest.mark.parametrize("name", device_checks.names(FILE))
def test_build(outcome: dict[str, str], name: str) -> None:
    assert outcome[name] == "", outcome[name]
