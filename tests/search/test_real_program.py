"""The search over a captured transformer with the real cost model."""

from pathlib import Path

import pytest

from automap_launch.cluster.file import load_cluster
from automap_launch.plan.cost import CostModel
from automap_launch.plan.pins import Pins
from automap_launch.program.analyse import analyse
from automap_launch.search.config import AgentConfig, PinConfig, SearchConfig
from automap_launch.search.search import search
from automap_launch.search.space import PlanSpace
from tests.plan import models

QUICK = AgentConfig(epsilon_episodes=2, round_episodes=3)
CLUSTERS = Path(__file__).parents[2] / "conf" / "cluster"


@pytest.fixture(scope="module")
def model() -> CostModel:
    step = models.transformer(d_model=1024, d_head=128, d_ff=4096, vocab=32000, batch=64, length=128)
    return CostModel(analyse(step, "cpu"), load_cluster(CLUSTERS / "v100_2x8.yaml"))


def test_the_default_search_proves_the_best_of_every_plan(model):
    """Pinned, so that every plan can be tried."""
    pins = Pins.resolve(PinConfig(data=4, model=2, storage="none", micro_batches=4), model.program, model.cluster)
    space = PlanSpace.pinned(model.program, pins)
    every = [d for d in space if d.schedule != "zero_bubble"][::3] + [d for d in space if d.schedule == "1f1b"]
    fastest = min(e.step_seconds for e in model.estimate_many(every) if e.fits)
    result = search(model, SearchConfig(pretrained=False, agent=QUICK), pins)
    assert result.proven_optimal
    assert result.estimate.step_seconds <= fastest * (1 + 1e-9)
    assert result.decision in space


def test_the_agent_is_within_a_few_percent_of_the_proven_optimum(model):
    pins = Pins.resolve(PinConfig(storage="optimizer"), model.program, model.cluster)
    result = search(model, SearchConfig(pretrained=False, agent=QUICK), pins)
    assert result.proven_optimal
    assert result.agent.gap < 0.05
    fitting = [e.step_seconds for name, e in result.baselines.items() if e and e.fits and name == "data_parallel"]
    assert all(result.estimate.step_seconds <= seconds for seconds in fitting)
