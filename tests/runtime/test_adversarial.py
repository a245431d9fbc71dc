"""Steps in which examples meet, or seem to, under plans of every kind. All of them: see docs/adversarial.md."""

from __future__ import annotations

import pytest

from tests.equality import F32_TOLERANCE
from tests.program.adversarial import CASES
from tests.runtime.under_plans import half_lost, outcomes

BY_NAME = {case.name: case for case in CASES}
CHOSEN = (
    "clipped_for_each_example",
    "the_largest_rounded",
    "two_models_in_one_step",
    "gradients_applied_every_other_step",
    "branch_that_may_never_end",
    "batch_norm",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_exact_or_refused_under_every_plan(name: str) -> None:
    found = outcomes(BY_NAME[name])
    for plan, outcome in found.items():
        assert outcome.is_equal or outcome.refused, (plan, outcome)
    assert found["data parallel"].is_equal
    assert found["accumulation"].is_equal == (BY_NAME[name].refused is None), found


def test_the_comparison_would_notice_a_lost_half() -> None:
    assert half_lost(BY_NAME["mean_of_losses"]) > 100 * F32_TOLERANCE
