"""What a plan does and why, as tables for the terminal."""

from __future__ import annotations

from rich.table import Table

from automap_launch.plan.baselines import baselines
from automap_launch.plan.build import decision_of
from automap_launch.plan.cost import CostModel, Estimate
from automap_launch.plan.decision import Decision
from automap_launch.plan.plan import Plan
from automap_launch.units import format_bytes, format_seconds

_AXES = {"data+model": "both"}


def explain(plan: Plan, model: CostModel) -> list[Table]:
    """Tables: the plan beside the baselines, its groups, and where its step's time goes."""
    decision = decision_of(plan, model.program)
    return [candidates(plan, decision, model), groups(plan, model), time_spent(decision, model)]


def candidates(plan: Plan, decision: Decision, model: CostModel) -> Table:
    """Predicted step time and memory of the plan and of each baseline, and their ratio to data parallelism."""
    table = Table(title=f"Plans for {model.cluster.describe()}, predicted")
    table.add_column("plan")
    table.add_column("mesh")
    table.add_column("found by")
    for name in ("step", "compute", "communication", "memory/device", "x data parallel"):
        table.add_column(name, justify="right")
    known = baselines(model.program, model.cluster)
    estimates = {name: model.estimate(other) for name, other in known.items() if other is not None}
    reference = estimates.get("data_parallel")
    rows = [("this plan", decision, plan.origin.searcher, model.estimate(decision))]
    rows += [(name, known[name] or decision, "baseline", estimate) for name, estimate in estimates.items()]
    for name, own, found_by, estimate in rows:
        table.add_row(
            name,
            describe_mesh(own),
            found_by,
            format_seconds(estimate.step_seconds),
            format_seconds(estimate.compute),
            format_seconds(estimate.communication),
            format_bytes(estimate.memory.total) + ("" if estimate.fits else " (does not fit)"),
            _ratio(estimate, reference),
            style="bold" if name == "this plan" else None,
        )
    for name in [name for name, own in known.items() if own is None]:
        table.add_row(name, "impossible here", "baseline", *["-"] * 5)
    return table


def groups(plan: Plan, model: CostModel) -> Table:
    """The linkage groups: sizes, members, the axis of each, and why."""
    table = Table(title="Groups of dims that are sharded alike")
    for name in ("group", "kind", "sizes", "tied", "bytes", "axis", "parameters", "reason"):
        table.add_column(name, overflow="fold")
    for choice in plan.groups:
        group = model.program.groups[choice.id]
        table.add_row(
            str(group.id),
            group.kind,
            ", ".join(map(str, group.sizes)),
            str(group.tied),
            format_bytes(group.bytes),
            choice.axis or "-",
            _members(choice.members),
            choice.reason,
            style=None if choice.axis else "dim",
        )
    return table


def time_spent(decision: Decision, model: CostModel) -> Table:
    """Seconds of each part of the step and of each kind of collective, costliest first."""
    table = Table(title="Where a step's time goes, predicted")
    for name in ("what", "seconds", "share", "bytes/device", "collectives"):
        table.add_column(name, justify="left" if name == "what" else "right")
    total = model.estimate(decision).step_seconds
    breakdown = model.breakdown(decision)
    rows = [(f"{part}: compute", seconds, "", "") for part, seconds in breakdown.compute.items()]
    for use in breakdown.collectives:
        axis = _AXES.get(use.axis, use.axis)
        name = f"{use.kind.replace('_', '-')} over {axis}"
        rows.append((name, use.seconds, format_bytes(use.bytes), str(use.count)))
    for name, seconds, size, count in sorted(rows, key=lambda row: -row[1]):
        if seconds > 0:
            table.add_row(name, format_seconds(seconds), f"{100 * seconds / total:.0f} %", size, count)
    return table


def describe_mesh(decision: Decision) -> str:
    """`data 4 x model 2, ZeRO: optimizer`."""
    parts = [f"{axis} {size}" for axis, size in (("data", decision.data), ("model", decision.model)) if size > 1]
    mesh = " x ".join(parts) or "1 device"
    return mesh if decision.storage == "none" else f"{mesh}, ZeRO: {decision.storage}"


def _ratio(estimate: Estimate, reference: Estimate | None) -> str:
    return "-" if reference is None else f"{estimate.step_seconds / reference.step_seconds:.3g}"


def _members(paths: tuple[str, ...]) -> str:
    shown = ", ".join(paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
