"""Steps in which examples meet, or seem to, under plans of every kind. All of them: see `under_plans.py`."""

from __future__ import annotations

import pytest

from tests.program.adversarial import CASES
from tests.runtime.under_plans import outcomes

BY_NAME = {case.name: case for case in CASES}
CHOSEN = (
    "clipped_for_each_example",
    "group_means",
    "two_models_in_one_step",
    "gradients_applied_every_other_step",
    "branch_that_may_never_end",
    "batch_norm",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_exact_or_refused_under_every_plan(name: str) -> None:
    found = outcomes(BY_NAME[name])
    assert found["data parallel"] == "exact"
    assert (found["accumulation"] == "exact") == (BY_NAME[name].refused is None), found
