"""The table of `docs/adversarial.md`: what it holds, and what it would not let pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.program.adversarial import CASES
from tools.adversarial_table import DOCUMENT, document, is_right

BY_NAME = {case.name: case for case in CASES}


def result(control: float = 0.5, **plans: Any) -> dict[str, Any]:
    equal = {"devices": 8, "difference": 1e-7, "refused": None}
    found = dict.fromkeys(("data parallel", "accumulation", "pipeline", "hybrid"), equal)
    return {"control": control, "plans": {**found, **plans}}


def test_every_step_is_in_the_document() -> None:
    written = DOCUMENT.read_text()
    missing = [case.name for case in CASES if f"| {case.name} | {case.about} |" not in written]
    assert not missing, f"run python tools/adversarial_table.py: docs/adversarial.md lacks {missing}"
    assert "Not as they must be" not in written


@pytest.mark.parametrize(
    ("name", "found", "right"),
    [
        ("mean_of_losses", result(), True),
        ("mean_of_losses", result(pipeline={"devices": 4, "difference": 1e-4, "refused": None}), False),
        ("mean_of_losses", result(control=0.0), False),  # the comparison sees nothing
        ("batch_norm", result(), False),  # must be refused
    ],
)
def test_what_is_different_is_named(name: str, found: dict[str, Any], right: bool) -> None:
    assert is_right(BY_NAME[name], found) == right
    said = f"**Not as they must be: {name}.**"
    assert (said in document([BY_NAME[name]], {name: found})) != right
