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


def test_what_varies_along_the_blocks_leaves_the_other_draws_as_they_are():
    plain = Distribution(blocks=(12, 12), products=(2, 2), spread=(0.0, 0.0), rare=0.0)
    along = replace(plain, trend=(100.0, 100.0), ends=(5.0, 5.0), kept=(3.0, 3.0))
    one, other = draw(np.random.default_rng(6), plain), draw(np.random.default_rng(6), along)
    np.testing.assert_array_equal(one.products.inner, other.products.inner)
    np.testing.assert_array_equal(one.products.seconds, other.products.seconds)
    assert one.cluster.links == other.cluster.links
    sent = other.products.activations / one.products.activations
    assert sent[0] / sent[-1] == pytest.approx(100)
    held = other.products.weights / one.products.weights
    assert held[-1] / held[0] == pytest.approx(100)
    assert held[0] / held[2] == pytest.approx(5 / 100 ** (1 / 11))
    kept = [model.program.blocks[0].residual_bytes / model.products.activations[:2].sum() for model in (one, other)]
    assert kept == pytest.approx([1, 3], rel=1e-3)


def test_kinds_of_blocks_follow_one_another():
    model = draw(
        np.random.default_rng(7),
        Distribution(blocks=(20, 20), products=(1, 1), spread=(0.0, 0.0), rare=0.0, kinds=(2, 2), kind_spread=1.0),
    )
    seconds = model.products.seconds
    assert len(np.unique(seconds.round(12))) == 2
    assert np.count_nonzero(np.diff(seconds)) == 1


def test_groups_can_be_numbered_by_their_bytes_and_tell_in_how_many_blocks_they_are():
    ranges = Distribution(blocks=(8, 8), products=(3, 3), inner_groups=(4, 4), by_size=True, off_stream=0.0)
    for seed in range(5):
        model = draw(np.random.default_rng(seed), ranges)
        groups = model.program.groups[1:]
        assert [g.bytes for g in groups] == sorted((g.bytes for g in groups), reverse=True)
        for group in groups:
            blocks = set(model.products.block[model.products.inner == group.id].tolist())
            assert group.tied == max(len(blocks), 1)
