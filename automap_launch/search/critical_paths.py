"""What a pipeline takes at least: paths through the tasks of one of its stages, for all runs of blocks at once.

A step is no shorter than any chain of tasks each of which waits for the one before it. Of the chains that spend their
middle at stage s, each is

- the way there: what stage 0 does before the first micro-batch, and the forward tasks and messages of that one; or what
  the last stage does before, and the way back from there (a copy of a tied embedding may keep it longest);
- tasks of stage s in its own order, and *trips*: from its forward task of a micro-batch by the next stage, or by all
  stages after it, back to a backward task. Where the stage that turns runs forward i before backward j, a trip may
  begin with i and end with j. Or from a backward task by the stages before it, until one of them has a forward task
  after it, to that. Trips of which each begins after the one before it has ended, and all tasks outside of them, follow
  on each other;
- what stage s does after its last task; or, from its last backward task, the way back to stage 0 and what that does
  then; or, from its last forward task, the way to the last stage and what that does then.

Which tasks are outside depends on the schedule alone (`schedule_paths.py`). The work of the stages before and after a
run is the work of the blocks before and after it, wherever these are cut; messages wait at least as long as under the
cuts that let them wait least (`least_waits`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import BlockCosts, RunCosts, crosses_hosts
from automap_launch.plan.decision import Schedule
from automap_launch.search.schedule_paths import COLUMNS, SchedulePaths, paths_of

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Pipelines:
    """All pipelines of so many stages and micro-batches with these costs.

    Attributes:
      runs: of all blocks, zero where there is no run. forward, backward, weight: of a micro-batch, [first block, end];
        where the schedule does not set weight parts apart, they are in `backward`.
      sent: float64[stages, blocks + 1], seconds of the message of a stage that ends before a block; 0 of the last one.
    """

    runs: RunCosts
    stages: int
    micro_batches: int
    forward: Array
    backward: Array
    weight: Array
    sent: Array

    @classmethod
    def of(cls, costs: BlockCosts, runs: RunCosts, stages: int, schedule: Schedule) -> _Pipelines:
        apart = schedule == "zero_bubble"
        backward = runs.backward if apart else runs.backward + runs.weight
        weight = runs.weight if apart else np.zeros_like(runs.weight)
        return cls(runs, stages, costs.micro_batches, runs.forward, backward, weight, sent_seconds(costs, stages))

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.stages, *self.forward.shape)

    @cached_property
    def up(self) -> Array:
        """float64[blocks + 1]: forward of the blocks before each block."""
        return np.concatenate([[0.0], self.forward[0, 1:]])

    @cached_property
    def down(self) -> Array:
        """float64[blocks + 1]: backward of the blocks before each block."""
        return np.concatenate([[0.0], self.backward[0, 1:]])

    @cached_property
    def waits(self) -> tuple[Array, Array]:
        """Of `least_waits`, zero where no cuts lead there; by stage and first block, and by stage and end."""
        ahead, behind = (np.where(np.isfinite(waits), waits, 0.0) for waits in least_waits(self.sent))
        return ahead[:, :-1, None], behind[:, None]

    @cached_property
    def single(self) -> Array:
        """float64[3, blocks]: forward, backward and weight of each block alone."""
        block = np.arange(len(self.forward))
        return np.stack([of[block, block + 1] for of in (self.forward, self.backward, self.weight)])

    @property
    def first(self) -> float:
        """What stage 0 does before its first task, whatever its blocks."""
        return float(self.runs.before[0, 1:].min())

    @property
    def final(self) -> float:
        """What stage 0 does after its last task, whatever its blocks."""
        return float(self.runs.after[0, 1:].min())

    @property
    def at_the_end(self) -> tuple[float, float]:
        """What the last stage does before its first task and after its last, whatever its blocks."""
        least = slice(self.stages - 1, None)  # it has no block of the stages before it
        return float(self.runs.before[least, -1].min()), float(self.runs.after[least, -1].min())

    @property
    def last_block(self) -> tuple[float, float, float]:
        """Forward, backward and weight of the block that the last stage has in any case."""
        forward, backward, weight = self.single[:, -1].tolist()
        return forward, backward, weight


def sent_seconds(costs: BlockCosts, stages: int) -> Array:
    """float64[stages, blocks + 1]: see `_Pipelines.sent`."""
    sent = np.zeros((stages, costs.blocks + 1))
    for stage in range(stages - 1):
        sent[stage, 1:] = costs.transfer_seconds(crosses_hosts(costs.cluster, costs.devices, stage))
    return sent


def least_waits(sent: Array) -> tuple[Array, Array]:
    """float64[stages, blocks + 1] each: seconds that messages of one micro-batch take, one way, under the best cuts;
    infinite where no cuts lead there.

    The first: of all messages from stage 0 up to stage s, whose first block is the second index. The other: of those
    that stage s, which ends before that block, and the stages after it send.

    Args:
      sent: of `sent_seconds`.
    """
    before, after = _waits_since(sent, 0, np.arange(sent.shape[1] - 1) == 0), np.full(sent.shape, np.inf)
    after[-1, -1] = 0.0
    for stage in reversed(range(len(sent) - 1)):
        nearest = np.minimum.accumulate(after[stage + 1][::-1])[::-1][1:]
        after[stage, 1:-1] = nearest[1:] + sent[stage, 1:-1]
    return before, after


@dataclass(frozen=True)
class RunBounds:
    """What a step takes at least if a run of blocks is a stage; [stage, first block, end].

    Attributes:
      joint: float64[KINDS, ...], of a path that begins or ends with stages before the run only what follows on those.
      before: [first block, end], before the first task of a run. there, back: what a run and its message add to the
        way there and to the way back. after: after the last backward task of a run.
    """

    joint: Array
    before: Array
    there: Array
    back: Array
    after: Array


# For each kind of path whether it begins with the way there, and whether it ends with the way back.
KINDS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def _waits_since(sent: Array, since: int, begins: npt.NDArray[np.bool_]) -> Array:
    """float64[stages, blocks + 1]: as the first of `least_waits`, of the messages from the stage `since` on. Args:
    begins: bool[blocks], with which blocks that may begin."""
    found = np.full(sent.shape, np.inf)
    if since < len(sent):
        found[since, :-1] = np.where(begins, 0.0, np.inf)
    for stage in range(since + 1, len(sent)):
        found[stage, 1:] = np.minimum.accumulate(found[stage - 1])[:-1] + sent[stage - 1, 1:]
    return found


def bounds_of_runs(costs: BlockCosts, runs: RunCosts, stages: int, schedule: Schedule) -> RunBounds:
    """Bounds of all runs of a case. Args: runs: `costs.every_run()`, zero where there is no run."""
    pipelines = _Pipelines.of(costs, runs, stages, schedule)
    paths = paths_of(schedule, stages, costs.micro_batches)
    joint = _by_itself(pipelines, paths, tied=bool(costs.tied))
    if schedule == "gpipe":
        joint[0] = np.maximum(joint[0], _queues(pipelines))
    elif stages > 2:
        joint[0, 1:] = np.maximum(joint[0, 1:], _with_the_stage_before(pipelines, paths))
    sent = pipelines.sent[:, None]
    return RunBounds(
        joint,
        runs.before,
        there=pipelines.forward + sent,
        back=pipelines.backward + sent,
        after=runs.after + paths.left[:, None, None] * pipelines.weight,
    )


def _by_itself(pipelines: _Pipelines, paths: SchedulePaths, *, tied: bool) -> Array:
    """`RunBounds.joint` by paths through a run; of the stages around it only the work that they have together is
    known."""
    p, (ahead, behind) = pipelines, pipelines.waits
    tasks = np.empty((p.stages, len(COLUMNS), *p.forward.shape))
    work = p.up + p.down
    tasks[:, 0] = (work[-1] - work[:-1])[:, None] + 2 * behind
    # The next stage has at least the block after the run.
    next_block = np.append(p.single[:2].sum(axis=0), 0.0)
    tasks[:, 1] = p.forward + p.backward + next_block + 2 * p.sent[:, None]
    tasks[:, 2] = p.forward + p.backward + _back_to(p, paths.turn)[..., None]
    tasks[:, 3], tasks[:, 4], tasks[:, 5] = p.forward, p.backward, p.weight
    flat = tasks.reshape(p.stages, len(COLUMNS), -1)

    def longest(of: Array) -> Array:
        seconds: Array = (of @ flat).max(axis=1).reshape(p.shape)
        return seconds

    there = np.maximum(p.runs.before, p.first + p.up[:-1, None] + ahead)
    there[0] = p.runs.before
    back = p.final + paths.left[0] * p.single[2, 0] + p.down[:-1, None] + ahead
    whole, stay, late = np.zeros(p.shape), longest(paths.stay) + p.runs.after, np.zeros(p.shape)
    leave = longest(paths.leave)
    if tied:
        others = np.arange(p.stages) < p.stages - 1  # than the last stage, which knows how long it takes itself
        before, after = p.at_the_end
        forward, backward, weight = p.last_block
        from_the_end = before + forward + (p.down[-1] - p.down) + behind
        to_the_end = after + backward + paths.left[-1] * weight + (p.up[-1] - p.up) + behind
        stay[others] = np.maximum(stay, longest(paths.up) + to_the_end)[others]
        late[others] = (from_the_end + longest(paths.late_leave))[others]
        whole[others] = (from_the_end + longest(paths.late_stay) + p.runs.after)[others]
        others &= paths.goes_up
        whole[others] = np.maximum(whole, from_the_end + longest(paths.late_up) + to_the_end)[others]
    whole = np.maximum(np.maximum(whole, late + back), there + np.maximum(stay, leave + back))
    return np.stack([whole, stay, late, leave])


def _back_to(pipelines: _Pipelines, turn: int) -> Array:
    """float64[stages, blocks]: from a stage that begins with a block to the stage `turn` before it and back again, at
    least. These stages have a block each; those from stage 0 on have all before."""
    p = pipelines
    found = np.zeros(p.shape[:2])
    work, blocks = p.up + p.down, np.arange(p.shape[1])
    waits = _waits_since(p.sent, turn, blocks >= turn if turn > 0 else blocks == 0)
    for stage in range(turn + 1, p.stages):
        since = np.maximum(blocks - (stage - turn), 0) if turn > 0 else np.zeros_like(blocks)
        found[stage] = work[:-1] - work[since] + 2 * waits[stage, :-1]
    return np.where(np.isfinite(found), found, 0.0)


def _with_the_stage_before(pipelines: _Pipelines, paths: SchedulePaths) -> Array:
    """float64[stages - 1, blocks, blocks + 1]: if a run is stage 1, 2, ...: by trips to it from the stage before, which
    has at least the block before it."""
    p, (ahead, _) = pipelines, pipelines.waits
    tasks = np.zeros((p.stages - 1, len(COLUMNS), *p.forward.shape))
    own = p.forward + p.backward
    before = np.concatenate([np.zeros((3, 1)), p.single[:, :-1]], axis=1)[..., None]
    tasks[:, 1] = own + before[:2].sum(axis=0) + 2 * p.sent[:-1, :-1, None]
    tasks[:, 3:] = before
    nearest = np.where(ahead[:-1] > 0, ahead[:-1], np.inf).min(axis=(1, 2))
    nearest[~np.isfinite(nearest)] = 0.0
    start = np.concatenate([[0.0], p.up[:-2]])[:, None] + np.concatenate([[0.0], p.down[:-2]])[:, None]
    way = p.first + p.final + start + 2 * nearest[:, None, None]
    trips = (paths.near[:-1] @ tasks.reshape(p.stages - 1, len(COLUMNS), -1)).max(axis=1)
    found: Array = way + trips.reshape(p.stages - 1, *p.forward.shape)
    return found


def _queues(pipelines: _Pipelines) -> Array:
    """Where all forward tasks precede all backward ones, micro-batches queue for the slowest stage or message on the
    way there, and then for the slowest on the way back; the last stage does both tasks at once, on the way back.

    The way there begins with stage 0 or with the run, the way back ends with one of them or with the last stage.
    """
    p, (ahead, behind) = pipelines, pipelines.waits
    rounds = p.micro_batches - 1
    sent = _slowest_sent(p.sent)
    before, after = p.at_the_end
    forward, backward, _ = p.last_block
    found = np.empty(p.shape)
    for stage in range(p.stages):
        # Of the stages before it, and of those after it, one takes no less than their mean.
        mean = np.stack([p.up, p.down])[:, :-1, None] / max(stage, 1)
        own_there, own_back = p.forward, p.backward
        if stage == p.stages - 1:
            own_there, own_back = np.zeros_like(p.forward), p.forward + p.backward
        else:
            mean_after = (p.down[-1] - p.down) / (p.stages - 1 - stage)
            own_there = np.maximum(own_there, np.maximum(p.sent[stage], sent[stage]))
            own_back = np.maximum(np.maximum(own_back, mean_after), np.maximum(p.sent[stage], sent[stage]))
        on_the_way = ahead[stage] + behind[stage]
        there = p.up[-1] - p.up[:-1, None] + behind[stage] + rounds * own_there + p.runs.before
        slowest = np.maximum(np.maximum(own_there, mean[0]), sent[0])
        there = np.maximum(there, p.first + p.up[-1] + on_the_way + rounds * slowest)
        there = np.maximum(there, before + forward)
        back = p.down[-1] - p.down[:-1, None] + behind[stage] + rounds * own_back + p.runs.after
        slowest = np.maximum(np.maximum(own_back, mean[1]), sent[0])
        back = np.maximum(back, p.down[-1] + on_the_way + rounds * slowest + p.final)
        back = np.maximum(back, rounds * (forward + backward) + backward + after)
        found[stage] = there + back
    return found


def _slowest_sent(sent: Array) -> Array:
    """float64[stages]: of the messages of each stage and those after it, the slowest one's seconds at least, wherever
    the stages end. Args: sent: of `sent_seconds`."""
    least = sent[:, 1:-1].min(axis=1, initial=np.inf)
    least[-1] = 0.0
    found: Array = np.maximum.accumulate(least[::-1])[::-1]
    return found
