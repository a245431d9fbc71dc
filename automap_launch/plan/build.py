"""Between `Decision` (what a search moves) and `Plan` (what is saved and read)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from automap_launch.errors import PlanError
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import STORAGES, Decision
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
    return Plan(
        fingerprint=program.step.fingerprint,
        cluster=ClusterId(cluster.name, cluster.digest),
        mesh=mesh,
        groups=_choices(decision, model),
        storage=storage_of(program, decision),
        stages=(Stage((0, 0), mesh, tuple(range(decision.devices))),),
        micro_batches=1,
        schedule="none",
        allow_local_batch_stats=False,
        predicted=Predicted(estimate.step_seconds, estimate.compute, estimate.communication, 0.0, estimate.memory),
        origin=origin,
        versions=_versions(),
    )


def decision_of(plan: Plan, program: Program) -> Decision:
    """The decision that a plan spells out.

    Raises:
      PlanError: the plan is not one of this program, or asks for what this version cannot run.
    """
    if len(plan.stages) > 1 or plan.micro_batches > 1 or plan.schedule != "none":
        raise PlanError(
            f"the plan has stages: {len(plan.stages)}, micro_batches: {plan.micro_batches}, schedule: {plan.schedule}: "
            "this version runs plans of one stage and one micro-batch (schedule: none)"
        )
    if set(plan.mesh) - {DATA, MODEL}:
        raise PlanError(f"mesh has the axes {', '.join(plan.mesh)}: expected {DATA} and {MODEL}")
    data, model = plan.mesh.get(DATA, 1), plan.mesh.get(MODEL, 1)
    sharded = _sharded_groups(plan, program)
    found = next(
        (
            decision
            for decision in (Decision(data, model, sharded, storage) for storage in STORAGES)
            if storage_of(program, decision) == plan.storage
        ),
        None,
    )
    if found is None:
        raise PlanError(_storage_difference(plan, program, Decision(data, model, sharded)))
    why = why_invalid(program, found)
    if why is not None:
        raise PlanError(f"the plan cannot be carried out: {why}")
    if plan.stages[0].mesh != plan.mesh or len(plan.stages[0].devices) != found.devices:
        raise PlanError(
            f"stages[0] has the mesh {plan.stages[0].mesh} on {len(plan.stages[0].devices)} devices: "
            f"in a plan of one stage it is the plan's mesh {plan.mesh}, on {found.devices} devices",
            hint="after an edit of `mesh`, edit `stages[0].mesh` likewise",
        )
    return found


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
    options = {s: storage_of(program, Decision(decision.data, decision.model, decision.sharded, s)) for s in STORAGES}
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


def _versions() -> dict[str, str]:
    found = {}
    for name, package in _VERSIONS_OF.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
