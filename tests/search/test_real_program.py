"""The search over a captured transformer with the real cost model."""

from pathlib import Path

import pytest

from automap_launch.cluster.file import load_cluster
from automap_launch.plan.cost import CostModel
from automap_launch.plan.pins import Pins
from automap_launch.program.analyse import analyse
from automap_launch.search.config import PinConfig, SearchConfig
from automap_launch.search.search import search
from automap_launch.search.space import PlanSpace
from tests.plan import models

CLUSTERS = Path(__file__).parents[2] / "conf" / "cluster"


@pytest.fixture(scope="module")
def model() -> CostModel:
    step = models.transformer(d_model=1024, d_head=128, d_ff=4096, vocab=32000, batch=64, length=128)
    return CostModel(analyse(step, "cpu"), load_cluster(CLUSTERS / "v100_2x8.yaml"))


def test_the_agent_finds_the_fastest_of_all_plans_with_a_fraction_of_the_evaluations(model):
    pins = Pins.resolve(PinConfig(), model.program, model.cluster)
    space = PlanSpace.pinned(model.program, pins)
    fastest = min(e.step_seconds for e in model.estimate_many(list(space)) if e.fits)
    result = search(model, SearchConfig(max_evaluations=space.size // 4), pins)
    baselines = [e.step_seconds for name, e in result.baselines.items() if e and e.fits and name != "single"]
    assert result.estimate.step_seconds == pytest.approx(fastest)
    assert result.found_by == "dqn"
    assert fastest < 0.95 * min(baselines)


def test_a_pinned_search_of_a_real_program_ends_with_the_proof(model):
    pins = Pins.resolve(PinConfig(data=4, storage="none"), model.program, model.cluster)
    result = search(model, SearchConfig(), pins)
    assert result.proven_optimal
    assert (result.decision.data, result.decision.model, result.decision.storage) == (4, 4, "none")
