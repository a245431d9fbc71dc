"""The timeline of a pipeline, against the pipeline runner's own task lists and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from automap_launch.plan import timeline
from automap_launch.plan.timeline import StageSeconds, in_flight, order_of, step_seconds
from automap_launch.runtime import schedules

SHAPES = [(2, 1), (2, 5), (3, 2), (4, 4), (4, 9), (8, 16), (5, 32)]


def drawn(plans, stages, seed=0):
    rng = np.random.default_rng(seed)

    def values(columns):
        return rng.uniform(0.2, 2.0, (plans, columns))

    return StageSeconds(
        forward=values(stages),
        backward=values(stages),
        weight=values(stages),
        before=values(stages),
        after=values(stages),
        transfer=0.5 * values(stages - 1),
    )


def simulated(schedule, micro_batches, seconds, plan):
    """The runner's simulation of one of the plans, without what happens once a step."""
    stages = seconds.forward.shape[1]
    apart = schedule == "zero_bubble"
    edges = schedules.chain(stages, weight=apart)
    order = schedules.with_messages(schedules.compute_order(schedule, stages, micro_batches), edges)

    def duration(task):
        forward, backward, weight = (
            float(getattr(seconds, kind)[plan, task.stage]) for kind in ("forward", "backward", "weight")
        )
        if task.stage == stages - 1:
            forward, backward = 0.0, forward + backward
        if not apart:
            backward, weight = backward + weight, 0.0
        return {"forward": forward, "backward": backward, "weight": weight}[task.kind]

    def message(task):
        return float(seconds.transfer[plan, min(task.stage, task.peer)])

    return schedules.simulate(order, duration, edges, message_seconds=message)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_orders_and_activations_in_flight_are_the_runners(schedule, stages, micro_batches):
    runner = schedules.compute_order(schedule, stages, micro_batches)
    assert order_of(schedule, stages, micro_batches) == tuple(
        tuple((task.kind, task.micro_batch) for task in tasks) for tasks in runner
    )
    edges = schedules.chain(stages, weight=schedule == "zero_bubble")
    held = schedules.simulate(runner, lambda _: 1.0, edges).in_flight
    assert in_flight(schedule, stages, micro_batches) == held


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_unequal_stages_take_what_the_runners_simulation_says(schedule, stages, micro_batches):
    seconds = drawn(10, stages)
    seconds.before[:], seconds.after[:] = 0.0, 0.0
    found = step_seconds(schedule, micro_batches, seconds)
    expected = [simulated(schedule, micro_batches, seconds, plan).step_seconds for plan in range(10)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_one_plan_takes_what_it_takes_among_many(schedule):
    seconds = drawn(8, 4)
    alone = StageSeconds(**{name: value[3:4] for name, value in vars(seconds).items()})
    assert step_seconds(schedule, 6, alone)[0] == pytest.approx(step_seconds(schedule, 6, seconds)[3], rel=1e-12)


def test_gpipe_is_two_flow_shops_of_equal_jobs():
    """All jobs alike: the machines' times once, and the slowest machine's for every further job."""
    jobs, seconds = 7, drawn(1, 4)
    seconds.before[:], seconds.after[:] = 0.0, 0.0
    forward, transfer = seconds.forward[0, :-1], seconds.transfer[0]
    backward = (seconds.backward + seconds.weight)[0]
    backward[-1] += seconds.forward[0, -1]
    total = 0.0
    for machines in (np.concatenate([forward, transfer]), np.concatenate([backward, transfer])):
        total += machines.sum() + (jobs - 1) * machines.max()
    assert step_seconds("gpipe", jobs, seconds)[0] == pytest.approx(total)


def test_equal_stages_have_the_bubble_of_the_papers():
    stages, jobs = 4, 12
    ones, free = np.ones((1, stages)), np.zeros((1, stages - 1))
    seconds = StageSeconds(ones, ones, ones, 0 * ones, 0 * ones, free)
    # (m + p - 1)(f + b) of 1F1B; the halves that wait for nobody fill all but the forward passes' and their own ends.
    assert step_seconds("1f1b", jobs, seconds)[0] == (jobs + stages - 1) * 3
    assert step_seconds("zero_bubble", jobs, seconds)[0] == jobs * 3 + (stages - 1)


def test_what_happens_once_delays_its_own_stage_alone():
    ones = np.ones((1, 2))
    base = StageSeconds(ones, ones, ones, 0 * ones, 0 * ones, np.zeros((1, 1)))
    plain = step_seconds("1f1b", 4, base)[0]
    # The first stage is the last to end; the second ends a backward pass before it and may use that time.
    late = StageSeconds(ones, ones, ones, 0 * ones, np.array([[0.0, 2.0]]), np.zeros((1, 1)))
    assert step_seconds("1f1b", 4, late)[0] == plain
    later = StageSeconds(ones, ones, ones, 0 * ones, np.array([[1.5, 2.0]]), np.zeros((1, 1)))
    assert step_seconds("1f1b", 4, later)[0] == plain + 1.5


def test_a_single_stage_runs_its_micro_batches_one_after_the_other():
    one = np.ones((1, 1))
    seconds = StageSeconds(2 * one, 3 * one, 4 * one, 5 * one, 6 * one, np.zeros((1, 0)))
    assert step_seconds("none", 10, seconds)[0] == 5 + 10 * (2 + 3 + 4) + 6
    assert in_flight("none", 1, 10) == (1,)
    with pytest.raises(ValueError, match="orders no tasks"):
        timeline.order_of("none", 1, 10)
