"""Costs by block, and the pipelines that are put together from them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest

from automap_launch.plan.block_costs import crosses_hosts
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.timeline import StageSeconds, in_flight, step_seconds
from automap_launch.program.analyse import analyse
from automap_launch.program.batch_analysis import Refusal
from automap_launch.runtime.accumulation import AccumulatedStep
from automap_launch.runtime.mesh import make_mesh
from automap_launch.split.accumulate import accumulate
from automap_launch.split.step import read
from automap_launch.train_step import SourceLine
from tests.plan.programs import BATCH, HIDDEN, IN, OUT, cluster, two_blocks, two_layers
from tests.program import models
from tests.program.conftest import make_step

PIPELINES = ("gpipe", "1f1b", "zero_bubble")
W1, W2 = 4 * IN * HIDDEN, 4 * HIDDEN * OUT


@pytest.fixture(scope="module")
def language_model():
    """A language model with a tied embedding: 9 blocks, a batch of 8."""
    function, state, batch = models.language_model(4)
    return analyse(make_step(function, state, *batch))


def test_the_whole_program_in_one_run_costs_what_a_plan_of_one_stage_does(language_model):
    model = CostModel(language_model, cluster())
    whole = model.estimate(Decision(1, 1))
    costs = model.block_costs(Decision(1, 1))
    run = costs.runs(np.array([0]), np.array([costs.blocks]))
    assert run.compute[0] == pytest.approx(whole.compute)
    assert run.parameters[0] == pytest.approx(whole.memory.parameters)
    assert run.optimizer[0] == pytest.approx(whole.memory.optimizer)
    # Residuals of all blocks and one block's work are no less than what is alive at the peak of the step, or nearly.
    held = whole.memory.activations + whole.memory.gradients
    assert 0.9 * held < run.residuals[0] + run.working[0] + run.other[0] < 1.25 * held


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", PIPELINES)
def test_pipelines_put_together_by_hand_are_what_is_estimated(language_model, stages, schedule):
    model = CostModel(language_model, cluster(2, 3, op_seconds=1e-7))
    blocks, m = len(language_model.blocks), 4
    cuts = list(itertools.combinations(range(1, blocks), stages - 1))
    decisions = [Decision(2, 1, micro_batches=m, cuts=c, schedule=schedule) for c in cuts]
    costs = model.block_costs(decisions[0])
    runs = costs.every_run()
    flying = in_flight(schedule, stages, m)
    near, far = costs.transfer_seconds(False), costs.transfer_seconds(True)
    for decision, estimate in zip(decisions, model.estimate_many(decisions), strict=True):
        bounds = [0, *decision.cuts, blocks]
        spans = list(itertools.pairwise(bounds))
        row = {name: np.array([[getattr(runs, name)[span] for span in spans]]) for name in vars(runs)}
        transfer = [(far if crosses_hosts(cluster(2, 3), 2, s) else near)[b - 1] for s, b in enumerate(decision.cuts)]
        names = ("forward", "backward", "weight", "before", "after")
        seconds = StageSeconds(*(row[name] for name in names), np.array([transfer]))
        assert estimate.step_seconds == pytest.approx(step_seconds(schedule, m, seconds)[0])
        assert estimate.step_seconds == pytest.approx(estimate.compute + estimate.communication + estimate.bubble)
        memory = [runs.memory(n)[s] for s, n in zip(spans, flying, strict=True)]
        assert estimate.memory.total == pytest.approx(max(memory), abs=4)


def test_many_at_once_are_what_each_is_alone(language_model):
    model = CostModel(language_model, cluster())
    decisions = [
        Decision(2, 1, frozenset(), storage, 2, cuts, schedule)
        for storage in ("none", "state")
        for cuts in ((4,), (5,), (3, 5, 7))
        for schedule in PIPELINES
    ]
    decisions += [Decision(4, 1, micro_batches=2), Decision(8, 1), Decision(2, 1, micro_batches=4)]
    together = model.estimate_many(decisions)
    alone_model = CostModel(language_model, cluster())
    for decision, estimate in zip(decisions, together, strict=True):
        alone = alone_model.estimate(decision)
        assert alone.step_seconds == pytest.approx(estimate.step_seconds, rel=1e-12)
        assert alone.memory == estimate.memory


def test_running_ahead_costs_memory(language_model):
    model = CostModel(language_model, cluster())
    memory = {
        s: model.estimate(Decision(1, 1, micro_batches=8, cuts=(2, 4, 6), schedule=s)).memory.activations
        for s in PIPELINES
    }
    assert memory["1f1b"] < memory["zero_bubble"] < memory["gpipe"]


def test_accumulation_holds_the_activations_of_one_micro_batch(language_model):
    model = CostModel(language_model, cluster())
    one, eight = (model.estimate(Decision(1, 1, micro_batches=m)).memory for m in (2, 8))
    assert eight.activations < 0.35 * one.activations
    assert eight.gradients == one.gradients > 0
    assert (eight.parameters, eight.optimizer) == (one.parameters, one.optimizer)


def test_memory_of_accumulation_is_near_what_xla_allocates(language_model):
    step, analysis, micro_batches = language_model.step, language_model.batch_analysis, 4
    parts = read(step.modules["cpu"], step.arguments, step.results, analysis.arguments, sources=step.sources)
    accumulated = AccumulatedStep(
        accumulate(parts.line, parts.origin, parts.analysis, micro_batches),
        step.arguments,
        step.results,
        micro_batches,
        make_mesh({"data": 1, "model": 1}, jax.devices()[:1]),
    )
    donated = tuple(k for k, argument in enumerate(step.arguments) if argument.role == "state")
    leaves = [jax.ShapeDtypeStruct(argument.shape, argument.dtype) for argument in step.arguments]
    compiled = jax.jit(accumulated, donate_argnums=donated).lower(*leaves).compile()
    memory = CostModel(language_model, cluster()).estimate(Decision(1, 1, micro_batches=micro_batches)).memory
    allocated = compiled.memory_analysis().temp_size_in_bytes
    assert memory.activations + memory.gradients == pytest.approx(allocated, rel=0.25)


def test_micro_batches_cost_their_operations_and_reduce_gradients_once():
    model = CostModel(two_blocks(), cluster(op_seconds=1e-6))
    plain, cut = (model.estimate(Decision(4, 1, micro_batches=m)) for m in (1, 4))
    assert cut.communication == pytest.approx(plain.communication)
    operations = 5  # matrix products; all else is fused or runs once
    assert cut.compute > plain.compute + 3 * operations * 1e-6
    (use,) = model.breakdown(Decision(4, 1, micro_batches=4)).collectives
    assert (use.kind, use.axis, use.bytes, use.count) == ("all_reduce", "data", W1 + W2, 2)
    assert use.seconds == pytest.approx(cut.communication)


def test_sums_over_the_model_axis_are_made_for_each_micro_batch():
    model = CostModel(two_blocks(), cluster())
    sharded = frozenset({2})
    (use,) = model.breakdown(Decision(1, 8, sharded, micro_batches=4)).collectives
    assert (use.kind, use.axis, use.count, use.bytes) == ("all_reduce", "model", 4, 4 * BATCH * OUT)
    estimate = model.estimate(Decision(1, 8, sharded, micro_batches=4))
    assert use.seconds == pytest.approx(estimate.communication)


def test_a_low_precision_gradient_is_summed_in_32_bits():
    program = two_blocks()
    halves = replace(program, values=tuple(replace(v, dtype="bfloat16") for v in program.values))
    single, half = (CostModel(p, cluster()).estimate(Decision(1, 1, micro_batches=2)).memory for p in (program, halves))
    assert half.parameters == single.parameters // 2
    assert half.gradients == single.gradients == W1 + W2


def test_each_stage_holds_its_own_state_and_the_fullest_counts():
    model = CostModel(two_blocks(), cluster())
    stages = model.stages(Decision(4, 1, micro_batches=2, cuts=(1,), schedule="1f1b"))
    assert stages.parameters.tolist() == stages.optimizer.tolist() == [W1, W2]
    # For each micro-batch in flight, what the backward part reads of it: the first layer's output on either side.
    hidden, output = 4 * BATCH * HIDDEN / 8, 4 * BATCH * OUT / 8
    assert stages.residuals.tolist() == [hidden, hidden + output]
    memory = model.estimate(Decision(4, 1, micro_batches=2, cuts=(1,), schedule="1f1b")).memory
    assert memory.parameters == W1


def test_a_message_pays_for_the_link_that_it_crosses():
    program = two_blocks()
    costs = [CostModel(program, cluster(*shape)).block_costs(Decision(2, 1)) for shape in ((1, 4), (2, 2))]
    near, far = costs[0].transfer_seconds(False)[0], costs[1].transfer_seconds(True)[0]
    hidden = 4 * BATCH * HIDDEN / 2
    assert near == pytest.approx(1e-6 + hidden * 1e-10)
    assert far == pytest.approx(1e-5 + hidden * 1e-9)
    decision = Decision(2, 1, micro_batches=4, cuts=(1,), schedule="gpipe")
    inside, across = (CostModel(program, cluster(*shape)).estimate(decision) for shape in ((1, 4), (2, 2)))
    assert across.compute == inside.compute
    assert across.bubble > inside.bubble


@pytest.mark.parametrize(
    ("per_host", "devices", "expected"),
    [(4, 2, [False, True, False]), (2, 2, [True, True, True]), (8, 2, [False, False, False]), (4, 8, [True])],
)
def test_which_boundaries_cross_hosts(per_host, devices, expected):
    assert [crosses_hosts(cluster(4, per_host), devices, s) for s in range(len(expected))] == expected


def test_a_tied_parameter_is_copied_to_the_stages_that_do_not_own_it(language_model):
    model = CostModel(language_model, cluster())
    owner, reader = 0, len(language_model.blocks) - 1
    assert language_model.blocks[reader].tied == language_model.blocks[owner].tied != ()
    cut = model.stages(Decision(1, 1, micro_batches=2, cuts=(reader,), schedule="1f1b"))
    embedding = language_model.values[language_model.arguments[language_model.blocks[0].tied[0]]].bytes
    assert cut.other[1] >= embedding
    assert cut.gradients[1] >= embedding
    assert cut.parameters[1] < embedding
    assert cut.communication[1] >= 2 * embedding * 1e-10


def test_what_cannot_be_cut_is_refused_with_the_reason():
    mixing = Refusal("rows are sorted over the batch at train.py:12", "mixing", source=SourceLine("train.py", 12))
    statistics = Refusal("a mean over the batch at train.py:9 is used", "statistic", local_statistics=True)
    cases = [
        (two_layers(), "was not analysed"),
        (two_blocks(refusals=(mixing,)), r"stages=1 micro_batches=2: rows are sorted .* train\.py:12"),
        (two_blocks(refusals=(statistics, mixing)), r"\(and 1 more reason\); search\.allow_local_batch_stats=true"),
        (two_blocks(max_micro_batches=9), "cut into 2 equal parts .* does not divide the 9"),
    ]
    for program, message in cases:
        with pytest.raises(ValueError, match=message):
            CostModel(program, cluster()).estimate(Decision(1, 1, micro_batches=2))
    own = two_blocks(one_stage=Refusal("statistics of their own at train.py:9", "statistic"))
    with pytest.raises(ValueError, match=r"stages=2 micro_batches=1: statistics of their own at train\.py:9"):
        CostModel(own, cluster()).estimate(Decision(1, 1, cuts=(1,), schedule="1f1b"))
    assert CostModel(own, cluster()).estimate(Decision(1, 1, micro_batches=2)).fits
    model = CostModel(two_blocks(), cluster())
    with pytest.raises(ValueError, match="needs 16 devices, the cluster has 8"):
        model.estimate(Decision(8, 1, cuts=(1,), schedule="1f1b"))
    with pytest.raises(ValueError, match="and this step has 2"):
        model.estimate(Decision(2, 1, cuts=(1, 2), schedule="1f1b"))
    with pytest.raises(ValueError, match=r"cuts=\[2\]: the step has 2 blocks"):
        model.estimate(Decision(2, 1, cuts=(2,), schedule="1f1b"))
