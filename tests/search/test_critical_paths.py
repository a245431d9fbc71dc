"""Paths through one stage are no longer than any step, and long enough to be worth their while."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from automap_launch.plan.block_costs import RunCosts, TiedParameter, crosses_hosts
from automap_launch.plan.decision import Decision
from automap_launch.search.critical_paths import bounds_of_runs, least_waits, sent_seconds
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw

BLOCKS = 7
SCHEDULES = ("gpipe", "1f1b", "zero_bubble")
# From free messages to ones that take longer than any work, within a host and between hosts.
MODELS = Distribution(
    blocks=(BLOCKS, BLOCKS),
    products=(1, 2),
    inner_groups=(1, 2),
    batch=(5, 5),
    hosts=(0, 1),
    devices_per_host=(2, 3),
    network=(2.0, 5000.0),
    activation_seconds=(1e-6, 1e-1),
    spread=(0.0, 1.0),
    memory=(50.0, 60.0),
)


def models(count: int, seed: int = 0) -> list[SyntheticModel]:
    rng = np.random.default_rng(seed)
    return [draw(rng, MODELS) for _ in range(count)]


def cases(model: SyntheticModel, schedule: str):
    """By stages and micro-batches: costs, all cuts, and the seconds of each."""
    for stages, micro_batches in itertools.product((2, 4), (1, 2, 4, 16)):
        data = model.cluster.devices // stages
        if data == 0 or 32 % (data * micro_batches):
            continue
        cuts = np.array(list(itertools.combinations(range(1, BLOCKS), stages - 1)))
        one = Decision(data, 1, micro_batches=micro_batches, cuts=tuple(cuts[0].tolist()), schedule=schedule)
        costs = model.block_costs(one)
        # A tied embedding, whose copy and gradient keep the last stage as long as all work does.
        slow = float(costs.compute.sum())
        for tied in ((), (TiedParameter((0, BLOCKS - 1), 0.0, slow),)):
            costs = replace(costs, tied=tied)
            yield stages, costs, cuts, costs.pipelines(schedule, cuts).step_seconds


def bounds(costs, stages, schedule):
    runs = RunCosts(**{k: np.where(np.isfinite(v), v, 0.0) for k, v in vars(costs.every_run()).items()})
    return bounds_of_runs(costs, runs, stages, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_step_is_shorter_than_the_paths_through_any_of_its_stages(schedule):
    seen = 0
    for model in models(12):
        for stages, costs, cuts, seconds in cases(model, schedule):
            least = bounds(costs, stages, schedule).joint[0]
            for own, step in zip(cuts.tolist(), seconds.tolist(), strict=True):
                for stage, (first, end) in enumerate(itertools.pairwise([0, *own, BLOCKS])):
                    assert least[stage, first, end] <= step * (1 + 1e-9)
                    seen += 1
    assert seen > 2000


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_longest_path_of_a_pipeline_is_mostly_all_that_it_takes(schedule):
    """With messages of any length: they are what bounds of the work alone miss."""
    shares = []
    for model in models(20, seed=1):
        for stages, costs, cuts, seconds in cases(model, schedule):
            least = bounds(costs, stages, schedule).joint[0]
            best = int(seconds.argmin())
            runs = itertools.pairwise([0, *cuts[best].tolist(), BLOCKS])
            shares.append(max(least[k, first, end] for k, (first, end) in enumerate(runs)) / seconds[best])
    assert np.median(shares) > 0.97
    assert np.quantile(shares, 0.1) > 0.85


def test_messages_wait_least_under_some_cuts():
    for model in models(4, seed=2):
        for stages, costs, cuts, _ in cases(model, "1f1b"):
            ahead, behind = least_waits(sent_seconds(costs, stages))
            far = [crosses_hosts(costs.cluster, costs.devices, stage) for stage in range(stages - 1)]
            sent = [costs.transfer_seconds(crosses) for crosses in far]
            least = min(sum(sent[stage][cut - 1] for stage, cut in enumerate(own)) for own in cuts.tolist())
            assert least == pytest.approx(behind[0].min())
            assert least == pytest.approx(ahead[-1, :BLOCKS].min())
