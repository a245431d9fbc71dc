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
from automap_launch.search.features import FEATURES
from automap_launch.search.search import search
from automap_launch.search.space import Partial, PlanSpace
from automap_launch.search.spared import MIRRORED_CUTS, parameter_dims
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


def linked() -> Problem:
    """Group 1 holds four dims of two parameters, and is decided at once when the search begins."""
    problem = Problem()
    values = tuple(
        replace(v, shape=(*v.shape, *v.shape)) if i in (1, 2) else v for i, v in enumerate(problem.program.values)
    )
    dims = tuple((1, 1) if i in (1, 2) else own for i, own in enumerate(problem.program.dim_groups))
    problem.program = replace(problem.program, values=values, dim_groups=dims)
    return problem


def at_first_group(problem: Problem, **prune) -> Environment:
    space = PlanSpace(problem.program, Pins(problem.devices), PruningConfig(**prune))
    evaluator = Evaluator(problem, space)
    begin = space.settled(Partial(stages=1, micro_batches=1, schedule="none", mesh=(4, 2), storage="none"))
    return Environment(evaluator, lambda: begin)


def test_without_linkage_groups_each_dim_of_a_parameter_is_a_decision():
    problem = linked()
    env, whole = at_first_group(problem, linkage_groups=False), at_first_group(problem)
    assert parameter_dims(problem.program)[1] == 4
    env.reset(), whole.reset()
    assert env.choices[0].group.id == 1
    (reward, observation), (expected, _) = env.step(1), whole.step(1)
    assert reward == expected
    decided, priced = env.partial, problem.calls
    for _ in range(3):
        assert [c.group.id for c in env.choices] == [1, 1]
        assert [c.valid for c in env.choices] == [False, True]
        assert observation.mask.all()
        assert observation.features[1, FEATURES.index("is_group")] == 1
        assert env.partial == decided
        assert problem.calls == priced, "what was looked at is not priced again"
        reward, observation = env.step(1)
        assert reward == 0
    assert env.choices == whole.choices
    assert env.choices[0].group.id != 1


def test_a_dim_that_contradicts_its_linkage_group_is_a_dead_end():
    env = at_first_group(linked(), linkage_groups=False)
    env.reset()
    env.step(1)
    assert env.step(0) == (DEAD_END_REWARD, None)
    assert env.reset().mask.all()
    assert [c.valid for c in env.choices] == [True, True], "the next episode begins anew"


def test_without_forward_only_cuts_backward_part_and_update_are_cut_by_themselves():
    model = draw(np.random.default_rng(1), Distribution(blocks=(20, 20), devices_per_host=(2, 2), hosts=(1, 1)))
    pins = replace(model.pins, stages=4)

    def made(**prune) -> Environment:
        return Environment(Evaluator(model, PlanSpace(model.program, pins, PruningConfig(**prune))))

    def cuts(env: Environment) -> list[list[bool]]:
        """Which ways were valid at each cut of an episode that takes the last way that is valid."""
        seen, observation = [], env.reset()
        while observation is not None:
            ways = [c.valid for c in env.choices]
            action = len(ways) - 1 - ways[::-1].index(True)
            seen += [ways] if env.choices[action].kind == "cut" else []
            _, observation = env.step(action)
        return seen

    one, three = made(), made(forward_only_cuts=False)
    forward, all_ = cuts(one), cuts(three)
    assert forward
    assert one.decision == three.decision
    again = 1 + MIRRORED_CUTS
    assert all_[::again] == forward
    for place, ways in enumerate(forward):
        only_the_last = [False] * (len(ways) - 1) + [True]
        assert all_[again * place + 1 : again * (place + 1)] == [only_the_last] * MIRRORED_CUTS


@pytest.mark.parametrize("switch", ["linkage_groups", "forward_only_cuts"])
def test_a_search_of_longer_episodes_ends_with_a_plan_of_the_same_space(switch):
    problem = linked()
    settings = SearchConfig(method="dqn", agent=QUICK, max_evaluations=80, prune=PruningConfig(**{switch: False}))
    found = search(problem, settings, Pins(8), baselines={})
    assert found.decision in PlanSpace(problem.program, Pins(8))
