"""What a pipeline takes at least: paths through the tasks of one of its stages, for all runs of blocks at once.

A step is no shorter than any chain of tasks each of which waits for the one before it. Of the chains that spend their
middle at stage s, each is

- the way there: what stage 0 does before the first micro-batch, and the forward tasks and messages of that one;
- tasks of stage s in its own order, and *round trips*: from its forward task of a micro-batch by all stages after it
  back to a backward task. Where the last stage runs forward i before backward j, a round trip may begin with i and end
  with j. Round trips of which each begins after the one before it has ended, and all tasks outside of them, follow on
  each other;
- what stage s does after its last task; or, from its last backward task, the way back to stage 0 and what that does
  then.

Which tasks are outside depends on the schedule alone (`paths_of`). The work of the stages before and after a run is the
work of the blocks before and after it, wherever these are cut; messages wait at least as long as under the cuts that
let them wait least (`least_waits`). See `plan/timeline.py` for the orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import BlockCosts, RunCosts, crosses_hosts
from automap_launch.plan.decision import Schedule
from automap_launch.plan.timeline import TaskKind, order_of

Array = npt.NDArray[np.float64]

# Columns of a path: round trips, and tasks of the stage itself outside of them.
_TRIPS, _FORWARD, _BACKWARD, _WEIGHT = range(4)
_KINDS: tuple[TaskKind, ...] = ("forward", "backward", "weight")
# Seconds of a round trip and of a stage's own tasks, of all proportions: paths that are never the longest are left out.
_SAMPLE = np.exp(np.random.default_rng(0).uniform([0.0, -2.0, -2.0, -2.0], [4.0, 1.0, 1.0, 1.0], (200, 4)))


@dataclass(frozen=True)
class Paths:
    """float64[stages, paths, 4] each: how often each path has a round trip, a forward, a backward and a weight task.

    `stay`: to the end of the stage's own tasks. `leave`: to its last backward task. `left`: the weight tasks of stage 0
    after its last backward task.
    """

    stay: Array
    leave: Array
    left: int


@lru_cache(maxsize=1024)
def paths_of(schedule: Schedule, stages: int, micro_batches: int) -> Paths:
    """The paths of every stage under a schedule of a pipeline."""
    orders = order_of(schedule, stages, micro_batches)
    places = [{task: place for place, task in enumerate(order)} for order in orders]
    turns = _turns(places[-1], micro_batches)
    stay, leave = [], []
    for stage, place in enumerate(places):
        kinds = [kind for kind, _ in orders[stage]]
        done = np.array([np.cumsum([0, *(kind == wanted for kind in kinds)]) for wanted in _KINDS]).T
        # The last stage goes from forward to backward at once, so nothing is between them.
        chains = _chains(place, turns) if stage < stages - 1 else [[]]
        end = place["backward", micro_batches - 1] + 1
        stay.append(_longest(np.array([_path(done, chain, len(kinds)) for chain in chains])))
        leave.append(_longest(np.array([_path(done, chain, end) for chain in chains])))
    end = places[0]["backward", micro_batches - 1]
    left = sum(kind == "weight" for kind, _ in orders[0][end:])
    return Paths(_padded(stay), _padded(leave), left)


def least_waits(costs: BlockCosts, stages: int) -> tuple[Array, Array]:
    """float64[stages, blocks + 1] each: seconds that messages of one micro-batch take, one way, under the best cuts.

    The first: of all messages from stage 0 up to stage s, whose first block is the second index. The other: of those
    that stage s, which ends before that block, and the stages after it send.
    """
    blocks = costs.blocks
    sent = np.zeros((stages, blocks + 1))
    for stage in range(stages - 1):
        sent[stage, 1:] = costs.transfer_seconds(crosses_hosts(costs.cluster, costs.devices, stage))
    before, after = np.full((stages, blocks + 1), np.inf), np.full((stages, blocks + 1), np.inf)
    before[0, 0], after[-1, blocks] = 0.0, 0.0
    for stage in range(1, stages):
        nearest = np.minimum.accumulate(before[stage - 1])[:-1]
        before[stage, 1:] = nearest + sent[stage - 1, 1:]
    for stage in reversed(range(stages - 1)):
        nearest = np.minimum.accumulate(after[stage + 1][::-1])[::-1][1:]
        after[stage, 1:-1] = nearest[1:] + sent[stage, 1:-1]
    return before, after


def least_seconds_of_runs(costs: BlockCosts, runs: RunCosts, stages: int, schedule: Schedule) -> Array:
    """float64[stages, blocks, blocks + 1]: what a step takes at least if a run of blocks is a stage.

    Args:
      runs: `costs.every_run()`, zero where there is no run.
    """
    paths = paths_of(schedule, stages, costs.micro_batches)
    forward, backward, weight = runs.forward, runs.backward, runs.weight
    if schedule != "zero_bubble":
        backward, weight = backward + weight, np.zeros_like(weight)
    ahead, behind = least_waits(costs, stages)
    ahead[~np.isfinite(ahead)] = behind[~np.isfinite(behind)] = 0.0
    # Of the blocks before each block, and from it on.
    up, down = forward[0].copy(), backward[0].copy()
    up[0] = down[0] = 0.0
    rest = (up[-1] + down[-1]) - (up + down)[:-1]
    trip = rest[:, None] + 2 * behind[:, None, :]
    shape = (stages, 4, costs.blocks * (costs.blocks + 1))
    tasks = np.empty((stages, 4, costs.blocks, costs.blocks + 1))
    tasks[:, _TRIPS] = trip
    tasks[:, _FORWARD], tasks[:, _BACKWARD], tasks[:, _WEIGHT] = forward, backward, weight
    stay, leave = (
        (path @ tasks.reshape(shape)).max(axis=1).reshape(stages, costs.blocks, costs.blocks + 1)
        for path in (paths.stay, paths.leave)
    )
    # What stage 0 does at least before and after its tasks, whatever its blocks.
    first, final = runs.before[0, 1:].min(), runs.after[0, 1:].min() + paths.left * weight[0, 1:].min()
    there = first + up[:-1] + ahead[:, :-1]
    start = np.maximum(runs.before, there[..., None])
    start[0] = runs.before
    back = final + down[:-1] + ahead[:, :-1]
    found: Array = start + np.maximum(stay + runs.after, leave + back[..., None])
    if schedule == "gpipe":
        slowest = _slowest(forward, backward, up, down, stages)
        through = up[-1] + down[-1] + 2 * (ahead[:, :-1, None] + behind[:, None, :])
        found = np.maximum(found, first + through + (costs.micro_batches - 1) * slowest + final)
    return found


def _slowest(forward: Array, backward: Array, up: Array, down: Array, stages: int) -> Array:
    """float64[stages, blocks, blocks + 1]: the slowest stage's forward task and the slowest one's backward task, at
    least, if a run is a stage. Where all forward tasks precede all backward ones, micro-batches queue for the one, and
    then for the other; the last stage does both at once, which is a backward task.

    Args:
      up, down: float64[blocks + 1], forward and backward of the blocks before each block.
    """
    found = np.empty((stages, *forward.shape))
    for stage in range(stages):
        # Of the stages before it, and of those after it, one takes no less than their mean.
        before = np.stack([up[:-1], down[:-1]])[..., None] / max(stage, 1)
        if stage == stages - 1:
            found[stage] = before[0] + np.maximum(forward + backward, before[1])
            continue
        after = (down[-1] - down) / (stages - 1 - stage)
        found[stage] = np.maximum(forward, before[0]) + np.maximum(np.maximum(backward, before[1]), after)
    return found


def _turns(last: dict[tuple[TaskKind, int], int], micro_batches: int) -> list[int]:
    """For each backward task the latest forward task that the last stage runs before it. Args: last: its places."""
    found, latest = [], 0
    for k in range(micro_batches):
        while latest + 1 < micro_batches and last["forward", latest + 1] < last["backward", k]:
            latest += 1
        found.append(latest)
    return found


def _chains(place: dict[tuple[TaskKind, int], int], turns: list[int]) -> list[list[tuple[int, int]]]:
    """Chains of round trips of a stage, each as the places of its first and last task in the stage's order: none, every
    single one, and as many as there can be from each of those that can be the first."""
    trips = [(place["forward", i], place["backward", j]) for j, i in enumerate(turns)]
    found: list[list[tuple[int, int]]] = [[], *([trip] for trip in trips)]
    for first, (begins, _) in enumerate(trips):
        if begins > trips[0][1]:
            break
        chain = [trips[first]]
        for trip in trips[first + 1 :]:
            if trip[0] > chain[-1][1]:
                chain.append(trip)
        found.append(chain)
    return found


def _path(done: Array, chain: list[tuple[int, int]], end: int) -> Array:
    """float64[4]. Args: done: [places, kinds], tasks before each place. end: of the path, in the stage's order."""
    outside = done[end] - sum((done[last + 1] - done[first] for first, last in chain), np.zeros(3))
    return np.array([len(chain), *outside])


def _longest(paths: Array) -> Array:
    """Those of the paths that are the longest for some seconds of the tasks, as a sample of these shows."""
    most: Array = np.unique((_SAMPLE @ paths.T).argmax(axis=1))
    return np.unique(paths[most.astype(np.int64)], axis=0)


def _padded(paths: list[Array]) -> Array:
    most = max(len(own) for own in paths)
    return np.stack([np.concatenate([own, np.repeat(own[-1:], most - len(own), axis=0)]) for own in paths])
