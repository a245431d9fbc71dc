from dataclasses import replace

import numpy as np
import pytest
import torch

from automap_launch.plan.decision import Decision
from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig, SearchConfig
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd
from automap_launch.search.fine_tuning import Copy, fine_tune
from automap_launch.search.search import SearchResult, search
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, SyntheticModel, draw

SMALL = Distribution(blocks=(6, 6), hosts=(0, 0), devices_per_host=(2, 2), products=(1, 1), inner_groups=(1, 1))
QUICK = AgentConfig(hidden=16, learning_starts=8, batch_size=8, epsilon_episodes=2, round_episodes=2)


@pytest.fixture
def model() -> SyntheticModel:
    return draw(np.random.default_rng(11), replace(SMALL, batch=(4, 4)))


def test_a_copy_without_spread_is_the_model(model):
    copy = Copy(model, np.random.default_rng(0), spread=0.0)
    plans = list(PlanSpace(model.program, model.pins))[::23]
    for own, other in zip(model.estimate_many(plans), copy.estimate_many(plans), strict=True):
        assert other.step_seconds == pytest.approx(own.step_seconds)
        assert other.memory == own.memory


def test_copies_scale_each_block_by_itself_and_tell_the_cuts(model):
    copy = Copy(model, np.random.default_rng(0), spread=0.5)
    decision = Decision(2, 1, cuts=(3,), schedule="1f1b", micro_batches=2)
    own, scaled = model.block_costs(decision), copy.block_costs(decision)
    factors = scaled.compute[:, 0] / own.compute[:, 0]
    assert factors.std() > 0.1
    told = [after.flops / before.flops for before, after in zip(model.program.blocks, copy.program.blocks, strict=True)]
    np.testing.assert_allclose(factors, told, rtol=1e-3)
    assert model.estimate(decision).step_seconds != pytest.approx(copy.estimate_many([decision])[0].step_seconds)


def weights_of(agent: Agent) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in agent.online.parameters()])


def test_the_agent_learns_and_no_plan_of_the_model_itself_is_evaluated(model):
    agent = Agent(QUICK, seed=0)
    before = weights_of(agent)
    evaluator = Evaluator(model, PlanSpace(model.program, model.pins))
    events = []
    fine_tune(agent, evaluator, 12, events.append)
    assert not torch.equal(before, weights_of(agent))
    assert (agent.episodes, len(events), evaluator.episode) == (12, 12, 12)
    assert evaluator.evaluations == 0


def test_it_ends_with_the_search(model):
    ticks = iter(range(10_000))
    limits = Limits(seconds=50)
    evaluator = Evaluator(model, PlanSpace(model.program, model.pins), limits, clock=lambda: next(ticks))
    with pytest.raises(SearchEnd, match="budget"):
        fine_tune(Agent(QUICK), evaluator, 1000, lambda event: None)


def run(model: SyntheticModel, **config) -> SearchResult:
    settings = SearchConfig(method="dqn", pretrained=False, agent=QUICK, max_evaluations=300, **config)
    return search(model, settings, model.pins, baselines={"data_parallel": Decision(4, 1)})


@pytest.mark.parametrize(("finetune", "expected"), [("off", 0), ("9", 9)])
def test_the_setting_says_how_many_episodes_and_the_report_repeats_it(model, finetune, expected):
    found = run(model, finetune=finetune)
    assert found.agent.fine_tuned == expected
    assert found.episodes > expected
    assert ("after 9 episodes of fine-tuning" in found.conclusion) == (expected == 9)


def test_the_same_seed_gives_the_same_search(model):
    one, other = (run(model, finetune="9", seed=5) for _ in range(2))
    assert [(e.decision, e.evaluations, e.episode) for e in one.curve] == [
        (e.decision, e.evaluations, e.episode) for e in other.curve
    ]


def test_a_wrong_setting_is_refused():
    with pytest.raises(ValueError, match="auto, off or a number"):
        SearchConfig(finetune="-3")
