"""Each pruning switch keeps the space, or what of it the agent is offered, smaller; and can be switched off."""

from dataclasses import replace

import numpy as np
import pytest

from automap_launch.errors import PlanError
from automap_launch.plan.cost import CostModel
from automap_launch.plan.pins import Pins
from automap_launch.program.analyse import analyse
from automap_launch.search.config import AgentConfig, PinConfig, PruningConfig, SearchConfig
from automap_launch.search.environment import DEAD_END_REWARD, Environment
from automap_launch.search.evaluator import Evaluator
from automap_launch.search.search import search
from automap_launch.search.space import PlanSpace
from automap_launch.search.synthetic import Distribution, draw
from tests.plan import models
from tests.search.synthetic import Problem, cluster, program

QUICK = AgentConfig(epsilon_episodes=2, round_episodes=2)


def environment(problem: Problem, **prune) -> Environment:
    space = PlanSpace(problem.program, Pins(problem.devices), PruningConfig(**prune))
    return Environment(Evaluator(problem, space))


def test_without_tied_layers_each_layer_has_decisions_of_its_own():
    step = models.transformer(d_model=64, d_head=16, d_ff=128, vocab=512, batch=16, length=16)
    tied, apart = (analyse(step, tie_layers=tie_layers) for tie_layers in (True, False))
    assert len(apart.groups) > len(tied.groups)
    assert {g.tied for g in apart.groups} == {1}
    assert sum(g.tied for g in tied.groups) == len(apart.groups)
    sizes = [PlanSpace(p, Pins.resolve(PinConfig(), p, cluster())).size for p in (tied, apart)]
    assert sizes[1] > 5 * sizes[0]
    model = CostModel(apart, cluster(memory_bytes=10**10))
    settings = SearchConfig(method="dqn", agent=QUICK, max_evaluations=60)
    found = search(model, settings, Pins.resolve(PinConfig(), apart, model.cluster))
    assert found.estimate.fits


def test_more_groups_than_the_oracle_can_decide_are_left_to_the_agent():
    problem = Problem()
    problem.program = program(("parameter",) * 63)
    settings = SearchConfig(method="exact")
    with pytest.raises(PlanError, match="63 that are not tied"):
        search(problem, settings, Pins(8), baselines={})


def test_without_a_balance_window_cuts_lie_anywhere():
    model = draw(np.random.default_rng(1), Distribution(blocks=(20, 20), devices_per_host=(2, 2), hosts=(0, 0)))

    def ways(window: int | None) -> int:
        space = PlanSpace(model.program, replace(model.pins, stages=4), PruningConfig(balance_window=window))
        return len(space.partition.candidates((), 4))

    assert ways(1) < ways(3) < ways(None) == 17


def test_without_divisibility_the_agent_is_offered_dead_ends():
    problem = Problem(devices=128)  # a batch of 64
    masked, offered = environment(problem), environment(problem, divisibility=False)
    one, other = masked.reset(), offered.reset()
    assert one.mask.sum() < other.mask.sum() == len(other.mask)
    impossible = int(np.flatnonzero(~one.mask)[0])
    assert offered.step(impossible) == (DEAD_END_REWARD, None)
    assert problem.estimate(offered.decision).step_seconds > 0
    with pytest.raises(ValueError, match="masked"):
        masked.step(impossible)
    found = search(
        problem,
        SearchConfig(method="dqn", agent=QUICK, max_evaluations=80, prune=PruningConfig(divisibility=False)),
        Pins(128),
        baselines={},
    )
    assert found.decision in PlanSpace(problem.program, Pins(128))


def test_without_a_memory_bound_the_agent_is_offered_what_cannot_fit():
    problem = Problem(memory_bytes=400)
    bounded, open_ = environment(problem), environment(problem, memory_bound=False)
    one, other = bounded.reset(), open_.reset()
    assert 0 < one.mask.sum() < other.mask.sum()
    fits = [any(e.fits for e in ahead.styles.values()) for ahead in open_._after]
    np.testing.assert_array_equal(one.mask, fits)


def test_where_nothing_fits_all_ways_are_offered():
    observation = environment(Problem(memory_bytes=10)).reset()
    assert observation.mask.all()
