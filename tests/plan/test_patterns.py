"""Patterns that were worked out on one mesh, priced on others."""

import numpy as np
import pytest

from automap_launch.plan.cases import case_of
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.patterns import PatternBook
from automap_launch.plan.platforms import rules_of
from automap_launch.plan.quantity import Quantity, divisors, over, over_spec
from automap_launch.plan.row_sets import RowSets
from automap_launch.plan.rows import micro_row
from automap_launch.plan.traffic import memory_traffic
from automap_launch.program.analyse import analyse
from tests.plan.programs import cluster
from tests.program import models
from tests.program.conftest import make_step

MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (8, 1)]


@pytest.fixture(scope="module")
def language_model():
    function, state, batch = models.language_model(4)
    return analyse(make_step(function, state, *batch))


def test_quantities_are_divided_by_what_divides_them():
    mesh = {"data": 4, "model": 3}
    both = over_spec(("model", None, "data"))
    assert Quantity(240.0, both).at(divisors(mesh)) == 20
    assert Quantity(240.0, both + over(data=True)).at(divisors(mesh)) == 5
    assert Quantity(240.0, both + over(micro=True)).at(divisors(mesh, 10)) == 2
    assert Quantity(240.0, over_spec(("model", "data"), without="data")).at(divisors(mesh)) == 80


def test_one_book_says_of_every_row_and_mesh_what_the_sharding_rules_say(language_model):
    where = cluster()
    sets = RowSets(language_model, memory_traffic(language_model), where)
    book = PatternBook(language_model, sets)
    batch, checked = language_model.batch, 0
    for data, model in MESHES:
        mesh = {"data": data, "model": model}
        for micro_batches in (1, 2, 3):
            site = book.site(mesh, micro_batches)
            for column, groups in enumerate(sets.groups):
                axes = {g: "model" for g in groups if model > 1 and g != batch}
                axes |= {batch: "data"} if data > 1 else {}
                patterns = book.of(site, [(column, axes, 1)])
                seconds = book.seconds(site, patterns)
                for k, row in enumerate(sets.rows[column]):
                    micro = micro_row(row, batch, micro_batches)
                    case = case_of(micro, axes, mesh, rules_of(where.platform), scattered=True)
                    expected = sets.speed.seconds(row, case.flops, case.bytes, case.product)
                    expected += sets.speed.copying(case.relaid)
                    assert seconds[k] == pytest.approx(expected, rel=1e-12)
                    wires = patterns.wires[patterns.wires["item"] == k]
                    sizes = wires["size"] / site.divided_by[wires["over"]]
                    assert sizes == pytest.approx([c.size for c in case.collectives])
                    checked += len(wires)
    assert checked > 100


def test_estimates_do_not_depend_on_what_was_estimated_before(language_model):
    decisions = [
        Decision(d, m, frozenset({1}) if m > 1 else frozenset(), storage, micro_batches)
        for d, m in MESHES
        for storage in ("none", "optimizer", "state")
        for micro_batches in (1, 2)
        if 8 % (d * micro_batches) == 0 and language_model.groups[1].divisor % m == 0
    ]
    where = cluster()
    after_others = CostModel(language_model, where).estimate_many(decisions)
    for decision, estimate in list(zip(decisions, after_others, strict=True))[::4]:
        alone = CostModel(language_model, where).estimate(decision)
        assert alone.step_seconds == pytest.approx(estimate.step_seconds, rel=1e-12)
        assert alone.memory == estimate.memory
    assert len(np.unique([e.step_seconds for e in after_others])) > 10
