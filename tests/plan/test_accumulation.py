"""What a device reduces of its gradients once it has added up its micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_launch.plan.accumulation import shares_of_sums
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.program.batch_analysis import BatchAnalysis, State
from tests.plan.programs import Builder, cluster

PARTIAL, WHOLE = State("partial", reduction="add"), State("none")
TABLE = (64, 32)


def tied(*accumulated: str):
    """A table's gradient from two places, added up; the optimizer reads it, and a multiple of it."""
    b = Builder()
    batch, rows, columns = (b.group(kind) for kind in ("batch", "parameter", "parameter"))
    table = b.argument("params/table", TABLE, (rows, columns), parameter=True)
    x = b.argument("batch/x", (256, 32), (batch, columns), role="batch")
    y = b.argument("batch/y", (256, 64), (batch, rows), role="batch")
    of_lookup, of_logits, gradient, scaled, new = (b.value(TABLE, (rows, columns)) for _ in range(5))
    over_batch = {"contracted": ((0, 0), (1, 0)), "flops": 2 * 256 * 64 * 32, "part": "backward"}
    b.op("dot_general", (y, x), (of_lookup,), **over_batch)
    b.op("dot_general", (y, x), (of_logits,), **over_batch)
    b.op("add", (of_lookup, of_logits), (gradient,), fusable=True, part="backward")
    b.op("multiply", (gradient,), (scaled,), fusable=True, part="backward")
    b.op("subtract", (table, scaled), (new,), fusable=True, part="update")
    b.result(new, replaces=0)
    names = {"of_lookup": of_lookup, "of_logits": of_logits, "gradient": gradient, "scaled": scaled}
    states = [PARTIAL if v in names.values() else WHOLE for v in range(len(b.values))]
    found = BatchAnalysis(
        {}, tuple(states), accumulated=tuple(names[name] for name in accumulated), max_micro_batches=256
    )
    return replace(b.program(), batch_analysis=found)


@pytest.mark.parametrize(
    ("accumulated", "shares"),
    [
        (["gradient"], [0.5, 0.5]),
        (["gradient", "scaled"], [0.5, 0.5]),
        (["of_lookup", "of_logits"], [1.0, 1.0]),
        (["gradient", "of_lookup"], [1.5, 0.5]),
    ],
)
def test_what_is_added_up_is_reduced_once(accumulated, shares):
    assert shares_of_sums(tied(*accumulated)) == [*shares, 1.0, 1.0, 1.0]


def test_accumulated_gradients_are_reduced_whole_and_others_where_they_are_made():
    model = CostModel(tied("gradient"), cluster())
    once, accumulated = (
        sum(use.bytes for use in model.breakdown(Decision(8, 1, micro_batches=m)).collectives) for m in (1, 4)
    )
    table = 4 * TABLE[0] * TABLE[1]
    assert (once, accumulated) == (2 * table, table)


def test_a_step_that_was_not_analysed_reduces_every_sum():
    assert set(shares_of_sums(replace(tied("gradient"), batch_analysis=None))) == {1.0}
