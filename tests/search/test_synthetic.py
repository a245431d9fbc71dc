from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.decision import Decision
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, draw


def test_the_same_seed_draws_the_same_model():
    one, other = draw(np.random.default_rng(1), Distribution()), draw(np.random.default_rng(1), Distribution())
    assert one.cluster == other.cluster
    np.testing.assert_array_equal(one.products.seconds, other.products.seconds)
    assert one.program.blocks == other.program.blocks


def test_models_keep_to_the_distribution():
    narrow = Distribution(blocks=(5, 6), products=(2, 2), inner_groups=(3, 3), batch=(4, 4), hosts=(1, 1))
    rng = np.random.default_rng(2)
    for _ in range(10):
        model = draw(rng, narrow)
        assert 5 <= len(model.program.blocks) <= 6
        assert len(model.program.groups) == 5  # the batch, the inner ones and the stream
        assert model.program.groups[0].sizes == (16,)
        assert model.cluster.hosts == 2


def test_every_plan_of_the_space_can_be_costed_alone_and_together():
    model = draw(
        np.random.default_rng(4), Distribution(blocks=(3, 4), hosts=(0, 0), devices_per_host=(2, 2), batch=(2, 2))
    )
    plans = list(PlanSpace(model.program, model.pins))[::7]
    together = model.estimate_many(plans)
    assert [model.estimate(d) for d in plans[::5]] == together[::5]
    assert all(e.step_seconds >= e.compute + e.communication - 1e-12 for e in together)
    assert all(e.fits == (e.memory.total <= model.memory_limit) for e in together)


def test_sharding_saves_memory_and_storage_saves_more():
    model = draw(np.random.default_rng(5), Distribution(hosts=(0, 0), devices_per_host=(2, 2), divisors=(4, 6)))
    plain = Decision(2, 2, frozenset({int(model.products.inner[0])}))
    whole, sharded = model.estimate(replace(plain, sharded=frozenset())), model.estimate(plain)
    assert sharded.memory.parameters < whole.memory.parameters
    stored = model.estimate(replace(plain, storage="state"))
    assert stored.memory.parameters == pytest.approx(sharded.memory.parameters / 2, rel=0.01)
    assert stored.memory.optimizer < sharded.memory.optimizer
