"""Plans of known kinds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from automap_launch.plan.baselines import BASELINES, baselines, even_cuts
from automap_launch.plan.decision import Decision
from automap_launch.program.analyse import analyse
from tests.plan.models import mlp, transformer
from tests.plan.programs import cluster, two_blocks, two_layers


def group_of(program, path, dim):
    index = [a.path for a in program.step.arguments].index(path)
    return program.dim_groups[program.arguments[index]][dim]


def test_names_and_kinds():
    found = baselines(two_layers(), cluster())
    assert tuple(found) == BASELINES
    assert found["single"] == Decision(1, 1)
    assert found["data_parallel"] == Decision(8, 1)
    assert found["zero_data_parallel"] == Decision(8, 1, storage="state")


def test_a_batch_that_does_not_divide_rules_data_parallelism_out():
    found = baselines(two_layers(), cluster(per_host=7))
    assert found["single"] is not None
    assert found["data_parallel"] is None
    assert found["zero_data_parallel"] is None


def test_one_device_has_no_parallel_baseline():
    found = baselines(two_layers(), replace(cluster(), devices_per_host=1))
    assert [name for name, decision in found.items() if decision is not None] == ["single"]


def test_megatron_cuts_every_other_layer_of_an_mlp():
    program = analyse(mlp())
    decision = baselines(program, cluster())["megatron"]
    assert (decision.data, decision.model) == (4, 2)
    first, second = group_of(program, "params/0/w", 1), group_of(program, "params/1/w", 1)
    assert len({first, second} & decision.sharded) == 1


@pytest.mark.parametrize(("hosts", "mesh"), [(1, (4, 2)), (2, (2, 8))])
def test_megatron_cuts_heads_feed_forward_and_vocabulary_within_a_host(hosts, mesh):
    program = analyse(transformer())
    decision = baselines(program, cluster(hosts))["megatron"]
    assert (decision.data, decision.model) == mesh
    layer = "params/layers/0"
    inner = {
        group_of(program, f"{layer}/q", 1),
        group_of(program, f"{layer}/wi", 1),
        group_of(program, "params/embedding", 0),
    }
    assert decision.sharded == inner
    assert group_of(program, "params/norm", 0) not in decision.sharded


def test_the_even_pipeline_has_a_stage_a_host_and_the_most_micro_batches_that_divide():
    decision = baselines(two_blocks(), cluster(hosts=2, per_host=4))["pipeline"]
    assert decision == Decision(4, 1, micro_batches=8, cuts=(1,), schedule="1f1b")
    assert baselines(two_blocks(), cluster())["pipeline"] == decision  # two stages on a single host
    assert baselines(two_blocks(max_micro_batches=16), cluster())["pipeline"].micro_batches == 4
    four_hosts = baselines(two_blocks(), cluster(hosts=4, per_host=2))["pipeline"]
    assert (four_hosts.stages, four_hosts.data) == (2, 4)  # as many stages as there are blocks
    assert baselines(two_layers(), cluster())["pipeline"] is None


@pytest.mark.parametrize("seed", range(5))
def test_even_cuts_balance_stages_as_well_as_any(seed):
    rng = random.Random(seed)
    work = [rng.randint(1, 100) for _ in range(9)]
    for stages in (1, 2, 3, 4, 9):
        slowest = [
            max(sum(work[a:b]) for a, b in itertools.pairwise((0, *cuts, len(work))))
            for cuts in itertools.combinations(range(1, len(work)), stages - 1)
        ]
        cuts = even_cuts(work, stages)
        assert len(cuts) == stages - 1
        assert max(sum(work[a:b]) for a, b in itertools.pairwise((0, *cuts, len(work)))) == min(slowest)
