"""Pipelines on eight devices: see pipeline_checks.py, each of whose checks is a test here."""

from __future__ import annotations

import pytest

from tests.runtime import device_checks

FILE = "pipeline_checks.py"


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return device_checks.run(FILE)


@pytest.mark.parametrize("name", device_checks.names(FILE))
def test_pipeline(outcome: dict[str, str], name: str) -> None:
    assert outcome[name] == "", outcome[name]
