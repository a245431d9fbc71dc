"""`BlockCosts`: what each block of a program costs under one mesh, so that any pipeline of it is put together at once.

For one case (mesh of a stage, micro-batches, groups on `model`, storage) every cost is an array over blocks. A stage
is a run of blocks; what it costs (`runs`) are differences of running sums, and maxima. A pipeline is its stages'
costs, the messages between them and the schedule's timeline (`pipelines`). `CostModel.estimate_many` is no more than
that, so a search that works on runs of blocks finds the same seconds and bytes.

How a pipeline follows from its runs, for stage s of S with m micro-batches:
- Where layers of stacked state lie on other stages than the ones that run them, `lending` is added to its stages.
- It fits when, for each stage, `RunCosts.memory(in_flight[s])` is at most the memory limit, with
  `in_flight = timeline.in_flight(schedule, S, m)`.
- Its step takes `timeline.step_seconds` of its runs' `forward`, `backward`, `weight`, `before` and `after`, and of
  `transfer_seconds` of the boundaries. No pipeline is faster than any of its stages alone, which takes
  `compute + communication`; the rest is `bubble`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster
from automap_launch.plan.decision import Schedule
from automap_launch.plan.lending import Layers, Lending, least_bytes, lending
from automap_launch.plan.timeline import StageSeconds, in_flight, step_seconds

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Columns of `BlockCosts.compute` and `.collectives`: of one micro-batch, then once a step before and after them.
PHASES = ("forward", "backward", "weight", "before", "after")
MICRO_PHASES = 3
# Columns of `BlockCosts.held`.
HELD = ("parameters", "optimizer", "gradients", "other")
# `Memory` counts whole bytes of four kinds: a plan fits that needs less than this above the limit.
ROUNDED_BYTES = 4


@dataclass(frozen=True)
class TiedParameter:
    """A parameter that several blocks read. Stages that read it without owning it get a copy before the step, and send
    what they have of its gradient after it.

    `readers`: blocks, ascending, the owner first. `bytes`: of the copy and its gradient, on one device. `seconds`: of
    one way.
    """

    readers: tuple[int, ...]
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Joined:
    """Collectives over the data axis, once a step, that the compiler joins into buckets of `bucket` bytes.

    Attributes:
      after: for each kind, whether it runs after the micro-batches (gradients) or before them (parameters).
      bytes, counts: float64[blocks, kinds]. alpha, beta: float64[kinds], seconds a collective and a byte.
    """

    after: tuple[bool, ...]
    bytes: Array
    counts: Array
    alpha: Array
    beta: Array
    bucket: float


@dataclass(frozen=True)
class RunCosts:
    """Costs of runs of blocks as stages; arrays of one shape. Seconds, and bytes on one device.

    Attributes:
      forward, backward, weight: of one micro-batch, its collectives inside the stage included. `weight`: the part of
        the backward pass that only the update waits for.
      before, after: once a step: what needs no batch and the gathering of stored shards, copies of tied parameters;
        the reduction of gradients, and the update.
      compute, communication: of a whole step.
      parameters, optimizer, gradients, other: held all the time. other: batch, gathered copies.
      residuals: for each micro-batch in flight, what its backward pass needs, and what the stage has received for it.
      working: at the peak of one micro-batch, besides residuals.
      sums: the gradients once more, as sums over devices: after the last micro-batch, when no activations are left.
    """

    forward: Array
    backward: Array
    weight: Array
    before: Array
    after: Array
    compute: Array
    communication: Array
    parameters: Array
    optimizer: Array
    gradients: Array
    other: Array
    residuals: Array
    working: Array
    sums: Array

    @property
    def fixed(self) -> Array:
        """Bytes held whatever the schedule."""
        return self.parameters + self.optimizer + self.gradients + self.other

    def memory(self, flying: Array | Ints | int) -> Array:
        """Bytes at the peak with so many micro-batches in flight."""
        return self.fixed + self.activations(flying)

    def activations(self, flying: Array | Ints | int) -> Array:
        """Bytes besides what is held all the time, at the peak with so many micro-batches in flight."""
        peak: Array = np.maximum(flying * self.residuals + self.working, self.sums)
        return peak


@dataclass(frozen=True)
class PipelineCosts:
    """Costs of pipelines; arrays over plans. `compute`, `communication`: of the stage that is busy longest; `bubble`:
    the rest of `step_seconds`. `memory`: float64[plans, 4] at the peak of the fullest stage: parameters, optimizer,
    gradients, activations (and all else)."""

    step_seconds: Array
    compute: Array
    communication: Array
    bubble: Array
    memory: Array

    def fits(self, memory_limit: float) -> npt.NDArray[np.bool_]:
        """Which plans need at most so many bytes on a device, counted in whole bytes as in `Memory`."""
        needed: npt.NDArray[np.bool_] = self.memory.astype(np.int64).sum(axis=1) <= memory_limit
        return needed


@dataclass(frozen=True)
class BlockCosts:
    """Costs of each block in one case.

    Attributes:
      micro_batches: of the case. devices: of one stage.
      compute, collectives: float64[blocks, PHASES], seconds. Collectives over `data` that are joined are in `joined`.
      held: float64[blocks, HELD], bytes. residuals: float64[blocks], bytes for each micro-batch in flight.
      working: float64[blocks], bytes at the block's own peak, forward or backward, besides residuals and `held`.
      boundary: float64[blocks], bytes that one device sends after the block, of one micro-batch.
      twice: of the gradients' bytes, the most that are there twice while they are reduced; 0: they are not reduced.
      sums: the share of those that the second copy has (a reduce-scatter leaves a part).
      tied: see `TiedParameter`. stacks: state of loops over layers, which pipelines may hold elsewhere.
      recomputed: float64[blocks], bytes that all blocks of a stage work with at once; None: none.
    """

    cluster: Cluster
    micro_batches: int
    devices: int
    compute: Array
    collectives: Array
    joined: Joined
    held: Array
    residuals: Array
    working: Array
    boundary: Array
    twice: float = 0.0
    sums: float = 1.0
    tied: tuple[TiedParameter, ...] = ()
    recomputed: Array | None = None
    stacks: tuple[Layers, ...] = ()

    @property
    def blocks(self) -> int:
        return len(self.compute)

    def runs(self, first: Ints, end: Ints) -> RunCosts:
        """Costs of the runs of blocks from `first` up to, not including, `end`; arrays of one shape, first < end."""
        compute, collectives = _between(self.compute, first, end), _between(self.collectives, first, end)
        joined = self._joined_seconds(first, end)
        tied = [(t, self._is_copy(t, first, end)) for t in self.tied]
        tied_seconds = sum((t.seconds * copied for t, copied in tied), np.zeros(first.shape))
        tied_bytes = sum((t.bytes * copied for t, copied in tied), np.zeros(first.shape))
        collectives[..., PHASES.index("before")] += joined[0] + tied_seconds
        collectives[..., PHASES.index("after")] += joined[1] + tied_seconds
        seconds = compute + collectives
        held = _between(self.held, first, end)
        gradients = held[..., HELD.index("gradients")] + tied_bytes
        working = self._highest(first, end)
        if self.recomputed is not None:
            working = working + _between(self.recomputed, first, end)
        received = np.where(first > 0, self.boundary[first - 1], 0.0)
        forward, backward, weight, before, after = (seconds[..., k] for k in range(len(PHASES)))
        return RunCosts(
            forward,
            backward,
            weight,
            before,
            after,
            compute=self._whole_step(compute),
            communication=self._whole_step(collectives),
            parameters=held[..., HELD.index("parameters")],
            optimizer=held[..., HELD.index("optimizer")],
            gradients=gradients,
            other=held[..., HELD.index("other")] + tied_bytes,
            residuals=_between(self.residuals, first, end) + received,
            working=working,
            sums=self.sums * np.minimum(gradients, self.twice),
        )

    def every_run(self) -> RunCosts:
        """Costs of all runs, float64[blocks, blocks + 1] by first block and end; where end <= first, infinity."""
        first, end = np.indices((self.blocks, self.blocks + 1))
        possible = end > first
        found = self.runs(first[possible], end[possible])
        whole = {}
        for field in fields(RunCosts):
            whole[field.name] = np.full(first.shape, np.inf)
            whole[field.name][possible] = getattr(found, field.name)
        return RunCosts(**whole)

    def stages(self, cuts: Ints) -> RunCosts:
        """Costs of the stages of pipelines, [plans, stages]. Args: cuts: as in `pipelines`."""
        start = np.zeros((len(cuts), 1), dtype=np.int64)
        runs = self.runs(np.concatenate([start, cuts], axis=1), np.concatenate([cuts, start + self.blocks], axis=1))
        moved = self.lending(cuts)
        if moved is None:
            return runs
        return replace(
            runs,
            before=runs.before + moved.before,
            after=runs.after + moved.after + moved.update,
            compute=runs.compute + moved.update,
            communication=runs.communication + moved.before + moved.after,
            parameters=runs.parameters + moved.parameters,
            optimizer=runs.optimizer + moved.optimizer,
            gradients=runs.gradients + moved.gradients,
            other=runs.other + moved.other,
        )

    def lending(self, cuts: Ints) -> Lending | None:
        """What is added to the stages of pipelines; None: nothing. Args: cuts: as in `pipelines`."""
        if not self.stacks:
            return None

        def seconds(lender: Ints, borrower: Ints) -> tuple[Array, Array]:
            across = leaves_host(self.cluster, self.devices, lender, borrower)
            near, far = self.cluster.link("host"), self.cluster.link("network" if self.cluster.hosts > 1 else "host")
            return (
                np.where(across, far.alpha_s, near.alpha_s),
                np.where(across, far.beta_s_per_byte, near.beta_s_per_byte),
            )

        return lending(self.stacks, cuts, seconds)

    def least_lending(self, first: Ints, end: Ints, stages: int) -> Array:
        """Bytes that `lending` adds at least to runs of blocks as stages of so many."""
        return least_bytes(self.stacks, first, end, stages)

    def transfer_seconds(self, crosses_hosts: bool) -> Array:
        """float64[blocks]: seconds of one micro-batch's message after each block, one way."""
        link = self.cluster.link("network" if crosses_hosts else "host")
        seconds: Array = link.alpha_s + self.boundary * link.beta_s_per_byte
        return seconds

    def pipelines(self, schedule: Schedule, cuts: Ints) -> PipelineCosts:
        """Costs of pipelines, or of single stages that accumulate gradients.

        Args:
          cuts: int64[plans, stages - 1], for each plan the first blocks of all stages but the first.
        """
        return join(schedule, [(self, cuts)])

    def _whole_step(self, seconds: Array) -> Array:
        micro: Array = seconds[..., :MICRO_PHASES].sum(axis=-1)
        once: Array = seconds[..., MICRO_PHASES:].sum(axis=-1)
        return self.micro_batches * micro + once

    def _joined_seconds(self, first: Ints, end: Ints) -> tuple[Array, Array]:
        """Of joined collectives: before the micro-batches, and after them."""
        sizes, counts = _between(self.joined.bytes, first, end), _between(self.joined.counts, first, end)
        buckets = np.minimum(np.round(counts), np.maximum(np.ceil(sizes / self.joined.bucket), 1))
        seconds = buckets * self.joined.alpha + sizes * self.joined.beta
        after = np.array(self.joined.after)
        return seconds[..., ~after].sum(axis=-1), seconds[..., after].sum(axis=-1)

    def _highest(self, first: Ints, end: Ints) -> Array:
        inside = (np.arange(self.blocks) >= first[..., None]) & (np.arange(self.blocks) < end[..., None])
        highest: Array = np.where(inside, self.working, 0.0).max(axis=-1)
        return highest

    def _is_copy(self, tied: TiedParameter, first: Ints, end: Ints) -> npt.NDArray[np.bool_]:
        """Whether a run reads a tied parameter that an earlier stage owns."""
        reads = np.zeros(first.shape, dtype=bool)
        for block in tied.readers[1:]:
            reads |= (first <= block) & (block < end)
        return reads & (first > tied.readers[0])


def crosses_hosts(cluster: Cluster, devices: int, stage: int) -> bool:
    """Whether messages from `stage` to the next one leave a host; each stage has `devices` consecutive devices."""
    return bool(leaves_host(cluster, devices, np.array(stage), np.array(stage + 1)))


def leaves_host(cluster: Cluster, devices: int, stage: Ints, later: Ints) -> npt.NDArray[np.bool_]:
    """Whether messages from stages to later ones leave a host."""
    per_host = cluster.devices_per_host
    leaves: npt.NDArray[np.bool_] = stage * devices // per_host != ((later + 1) * devices - 1) // per_host
    return leaves


def join(schedule: Schedule, cases: list[tuple[BlockCosts, Ints]]) -> PipelineCosts:
    """Costs of pipelines of several cases with as many stages, micro-batches and devices each; see `pipelines`."""
    costs, stages = cases[0][0], cases[0][1].shape[1] + 1
    flying = np.array(in_flight(schedule, stages, costs.micro_batches))
    runs = []
    transfers = []
    for case, cuts in cases:
        runs.append(case.stages(cuts))
        across = [crosses_hosts(case.cluster, case.devices, stage) for stage in range(stages - 1)]
        columns = [case.transfer_seconds(far)[cuts[:, stage] - 1] for stage, far in enumerate(across)]
        transfers.append(np.stack(columns, axis=1) if columns else np.zeros((len(cuts), 0)))
    whole = {field.name: np.concatenate([getattr(run, field.name) for run in runs]) for field in fields(RunCosts)}
    all_runs = RunCosts(**whole)
    seconds = StageSeconds(
        all_runs.forward,
        all_runs.backward,
        all_runs.weight,
        all_runs.before,
        all_runs.after,
        np.concatenate(transfers),
    )
    total = step_seconds(schedule, costs.micro_batches, seconds)
    plans = np.arange(len(total))
    busiest = (all_runs.compute + all_runs.communication).argmax(axis=1)
    fullest = all_runs.memory(flying).argmax(axis=1)
    compute, communication = all_runs.compute[plans, busiest], all_runs.communication[plans, busiest]
    activations = all_runs.other + all_runs.activations(flying)
    columns = [all_runs.parameters, all_runs.optimizer, all_runs.gradients, activations]
    return PipelineCosts(
        step_seconds=total,
        compute=compute,
        communication=communication,
        bubble=np.maximum(total - compute - communication, 0.0) * (stages > 1),
        memory=np.stack([column[plans, fullest] for column in columns], axis=1),
    )


def _between(values: Array, first: Ints, end: Ints) -> Array:
    """Sums over blocks from `first` up to `end`."""
    sums = np.concatenate([np.zeros((1, *values.shape[1:])), values.cumsum(axis=0)])
    between: Array = sums[end] - sums[first]
    return between
