"""The batch analysis judged by numbers: a step in micro-batches equals the step, or it is refused."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from automap_launch.program.analyse import analyse
from tests.program.adversarial import CASES, Case
from tests.program.conftest import make_step
from tests.program.micro_batches import run, run_in_micro_batches


def trained(step):
    return [k for k, a in enumerate(step.arguments) if a.role == "state" and a.dtype == "float32" and a.shape]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_exact_or_refused(case: Case):
    step = make_step(case.step, case.state, *case.batch)
    analysis = analyse(step).batch_analysis
    if case.refused is not None:
        assert case.refused in {refusal.kind for refusal in analysis.refusals}
        assert analysis.max_micro_batches == 1
        assert all(refusal.source is not None for refusal in analysis.refusals)
        return
    assert analysis.refusals == ()
    m = min(4, analysis.max_micro_batches)
    assert m > 1
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves((case.state, case.batch))]
    expected = run(step.modules["cpu"], arrays)
    got, _ = run_in_micro_batches(step, analysis, trained(step), arrays, m)
    for result, a, b in zip(step.results, expected, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5, err_msg=result.path)
