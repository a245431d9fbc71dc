"""Between `Decision` (what a search moves) and `Plan` (what is saved and read)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

from automap_launch.errors import PlanError
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import SCHEDULES, STORAGES, Decision
from automap_launch.plan.derive import derive_layout, stored_leaves
from automap_launch.plan.plan import ClusterId, GroupChoice, Origin, Plan, Predicted, Stage
from automap_launch.plan.sharding import DATA, MODEL, mesh_of, shardable_groups, why_invalid
from automap_launch.program.program import Group, Program

_VERSIONS_OF = {"automap_launch": "automap-launch", "jax": "jax", "jaxlib": "jaxlib"}


@dataclass(frozen=True)
class Flip:
    """A plan with one group decided the other way: its step time and its memory, as multiples of the plan's."""

    time: float
    memory: float


def build_plan(decision: Decision, model: CostModel, origin: Origin) -> Plan:
    """Spells a decision out, with its predicted cost and the reason for each choice.

    Raises:
      ValueError: the decision cannot be carried out.
    """
    program, cluster = model.program, model.cluster
    estimate = model.estimate(decision)
    mesh = mesh_of(decision)
    own = decision.data * decision.model
    return Plan(
        fingerprint=program.step.fingerprint,
        cluster=ClusterId(cluster.name, cluster.digest),
        mesh=mesh,
        groups=_choices(decision, model),
        storage=storage_of(program, decision),
        stages=tuple(
            Stage(blocks, mesh, tuple(range(stage * own, (stage + 1) * own)))
            for stage, blocks in enumerate(spans_of(decision, program))
        ),
        micro_batches=decision.micro_batches,
        schedule=decision.schedule,
        allow_local_batch_stats=takes_local_statistics(decision, program),
        predicted=Predicted(
            estimate.step_seconds, estimate.compute, estimate.communication, estimate.bubble, estimate.memory
        ),
        origin=origin,
        versions=versions(),
    )


def spans_of(decision: Decision, program: Program) -> tuple[tuple[int, int], ...]:
    """First and last block of each stage."""
    bounds = (0, *decision.cuts, max(1, len(program.blocks)))
    return tuple((first, end - 1) for first, end in pairwise(bounds))


def takes_local_statistics(decision: Decision, program: Program) -> bool:
    """Whether micro-batches take batch statistics of their own: results differ from those of the unsplit step."""
    analysis = program.batch_analysis
    return decision.micro_batches > 1 and analysis is not None and bool(analysis.local_values)


def decision_of(plan: Plan, program: Program) -> Decision:
    """The decision that a plan spells out.

    Raises:
      PlanError: the plan is not one of this program, or cannot be carried out; the message names the field.
    """
    if set(plan.mesh) - {DATA, MODEL}:
        raise PlanError(f"mesh has the axes {', '.join(plan.mesh)}: expected {DATA} and {MODEL}")
    _check_stages(plan, program)
    try:
        bare = Decision(
            data=plan.mesh.get(DATA, 1),
            model=plan.mesh.get(MODEL, 1),
            sharded=_sharded_groups(plan, program),
            micro_batches=plan.micro_batches,
            cuts=tuple(stage.blocks[0] for stage in plan.stages[1:]),
            schedule=next(s for s in SCHEDULES if s == plan.schedule),
        )
    except ValueError as error:
        raise PlanError(f"the plan cannot be carried out: {error}") from error
    options = (replace(bare, storage=storage) for storage in STORAGES)
    found = next((option for option in options if storage_of(program, option) == plan.storage), None)
    if found is None:
        raise PlanError(_storage_difference(plan, program, bare))
    why = why_invalid(program, found)
    if why is not None:
        raise PlanError(f"the plan cannot be carried out: {why}")
    if takes_local_statistics(found, program) and not plan.allow_local_batch_stats:
        raise PlanError(
            f"the plan has micro_batches: {plan.micro_batches}, which would take batch statistics of their own, and "
            "allow_local_batch_stats: false",
            hint="set allow_local_batch_stats: true if results may differ from the unsplit step's",
        )
    return found


def _check_stages(plan: Plan, program: Program) -> None:
    """Raises PlanError unless stages share out the blocks in order, on meshes alike and consecutive devices."""
    own = math.prod(plan.mesh.values())
    expected = 0
    for number, stage in enumerate(plan.stages):
        if stage.blocks[0] != expected:
            raise PlanError(
                f"stages[{number}].blocks begins with block {stage.blocks[0]}: expected {expected}, the one after those"
                " of the stages before it"
            )
        expected = stage.blocks[1] + 1
        devices = list(range(number * own, (number + 1) * own))
        if stage.mesh != plan.mesh or list(stage.devices) != devices:
            raise PlanError(
                f"stages[{number}] has the mesh {stage.mesh} on the devices {_short(list(stage.devices))}: every stage "
                f"has the plan's mesh {plan.mesh}, this one on the devices {_short(devices)}",
                hint="after an edit of `mesh`, edit `mesh` and `devices` of the stages likewise",
            )
    blocks = max(1, len(program.blocks))
    if expected != blocks:
        raise PlanError(
            f"the stages end with block {expected - 1}: the step has the blocks 0 to {blocks - 1} "
            "(search.max_blocks says how many at most)"
        )


def _short(devices: list[int]) -> str:
    return str(devices) if len(devices) <= 8 else f"[{devices[0]}, {devices[1]}, ..., {devices[-1]}]"


def storage_of(program: Program, decision: Decision) -> dict[str, str]:
    """By path, the axis over which a state tensor is stored sharded besides its compute sharding (ZeRO)."""
    layout = derive_layout(program, decision)
    return {
        program.step.arguments[i].path: DATA
        for i in sorted(stored_leaves(program, decision))
        if DATA in layout.storage[i]
    }


def _sharded_groups(plan: Plan, program: Program) -> frozenset[int]:
    choices = {choice.id: choice for choice in plan.groups}
    missing = [group.id for group in program.groups if group.id not in choices]
    unknown = sorted(set(choices) - {group.id for group in program.groups})
    if missing or unknown:
        raise PlanError(
            f"the plan's groups are not the step's: missing {missing or 'none'}, unknown {unknown or 'none'}; "
            f"the step has the groups 0 to {len(program.groups) - 1}"
        )
    for group in program.groups:
        choice = choices[group.id]
        if choice.members != group.members:
            raise PlanError(
                f"group {group.id} of the plan has other members than the step's: {_difference(choice, group)}"
            )
        wanted = DATA if group.id == program.batch else MODEL
        if choice.axis not in (None, wanted):
            raise PlanError(f"group {group.id} is on the axis {choice.axis}: it can be on {wanted} or null")
        batch_axis = DATA if plan.mesh.get(DATA, 1) > 1 else None
        if group.id == program.batch and choice.axis != batch_axis:
            raise PlanError(
                f"group {group.id} is the batch: with mesh.{DATA}: {plan.mesh.get(DATA, 1)} its axis is "
                f"{batch_axis or 'null'}, got {choice.axis or 'null'}"
            )
    return frozenset(choice.id for choice in plan.groups if choice.axis == MODEL)


def _difference(choice: GroupChoice, group: Group) -> str:
    lost, gained = sorted(set(group.members) - set(choice.members)), sorted(set(choice.members) - set(group.members))
    parts = [f"without {', '.join(lost[:5])}"] if lost else []
    parts += [f"with {', '.join(gained[:5])}"] if gained else []
    return "; ".join(parts) or "in another order"


def _storage_difference(plan: Plan, program: Program, decision: Decision) -> str:
    options = {s: storage_of(program, replace(decision, storage=s)) for s in STORAGES}
    nearest = min(reversed(STORAGES), key=lambda s: len(set(plan.storage.items()) ^ set(options[s].items())))
    lost = sorted(set(options[nearest]) - set(plan.storage))
    gained = sorted(set(plan.storage) - set(options[nearest]))
    parts = [f"add {', '.join(lost[:5])}"] if lost else []
    parts += [f"remove {', '.join(gained[:5])}"] if gained else []
    return (
        "storage lists nothing, or all of the optimizer's state, or all state, each over the axis "
        f"{DATA} where it divides a free dim; nearest to the plan's is `{nearest}`: {'; '.join(parts)}"
    )


def flips_of(decision: Decision, model: CostModel) -> dict[int, Flip]:
    """By group id, what it would cost to decide the other way.

    Left out are groups that cannot be sharded, and the only one that is: without it the axis would shard nothing.
    """
    program = model.program
    others: dict[int, Decision] = {}
    for group in (program.groups[id_] for id_ in sorted(shardable_groups(program))):
        if decision.model > 1 and group.divisor % decision.model == 0 and decision.sharded != {group.id}:
            others[group.id] = replace(decision, sharded=decision.sharded ^ {group.id})
    own = model.estimate(decision)
    return {
        id_: Flip(e.step_seconds / own.step_seconds, e.memory.total / max(own.memory.total, 1))
        for id_, e in zip(others, model.estimate_many(list(others.values())), strict=True)
    }


def _choices(decision: Decision, model: CostModel) -> tuple[GroupChoice, ...]:
    program = model.program
    flips = flips_of(decision, model)
    choices = []
    for group in program.groups:
        if group.id == program.batch:
            axis = DATA if decision.data > 1 else None
            reason = f"the batch, {decision.data} ways" if axis else "the batch; the data axis has one device"
        else:
            axis = MODEL if group.id in decision.sharded and decision.model > 1 else None
            reason = _reason(group, decision, flips.get(group.id))
        choices.append(GroupChoice(group.id, axis, group.members, reason))
    return tuple(choices)


def _reason(group: Group, decision: Decision, flip: Flip | None) -> str:
    if decision.model == 1:
        return "the model axis has one device"
    sizes = ", ".join(map(str, group.sizes))
    if flip is None and group.id in decision.sharded:
        return "the only group on the axis model"
    if flip is None and group.divisor % decision.model == 0:
        return "no argument has a dim in it"
    if flip is None:
        return f"sizes {sizes} do not divide by {decision.model}"
    other = "whole" if group.id in decision.sharded else "sharded"
    return f"sizes {sizes}; {other}, a step would take {flip.time:.3g} x the time and {flip.memory:.3g} x the memory"


def versions() -> dict[str, str]:
    """Versions that a plan may depend on, by package."""
    found = {}
    for name, package in _VERSIONS_OF.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
