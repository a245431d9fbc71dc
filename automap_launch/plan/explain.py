"""What a plan does and why, as tables for the terminal. They fit 100 columns, one line a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich import box
from rich.table import Table

from automap_launch.plan.baselines import baselines
from automap_launch.plan.build import Flip, decision_of, flips_of
from automap_launch.plan.cost import CostModel, Estimate
from automap_launch.plan.decision import STORAGES, Decision
from automap_launch.plan.names import common_root, some_names
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import GroupChoice, Plan
from automap_launch.plan.sharding import in_words, shardable_groups
from automap_launch.plan.timeline import in_flight
from automap_launch.program.divide import why_undivided
from automap_launch.program.program import Group, Program
from automap_launch.units import format_bytes, format_seconds

_BUSIEST = "of the stage that is busy longest"
_AXES = {"data+model": "both"}


def explain(plan: Plan, model: CostModel) -> list[Table]:
    """Tables: the plan beside the baselines, its groups, its stages, and where its step's time goes."""
    decision = decision_of(plan, model.program)
    tables = [candidates(plan, decision, model), groups(plan, model)]
    if decision.stages > 1 or decision.micro_batches > 1:
        tables.append(stages(plan, decision, model))
    return [*tables, time_spent(decision, model)]


def blocks(program: Program) -> Table:
    """The blocks of which stages are made: `search.pin.cuts` names the first blocks of the later stages."""
    table = plain_table("Blocks, of which pipeline stages are made", "each of the blocks that share a row")
    table.add_column("block", justify="right", no_wrap=True)
    for name in ("forward", "backward", "parameters", "sent on"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("its parameters", no_wrap=True)
    work = max(1, sum(block.flops + block.backward_flops for block in program.blocks))
    root = _root(program)
    rows = [
        (
            f"{100 * block.flops / work:.1f} %",
            f"{100 * block.backward_flops / work:.1f} %",
            format_bytes(block.parameter_bytes),
            format_bytes(block.boundary_bytes),
            some_names([program.step.arguments[k].path for k in block.parameters], root),
        )
        for block in program.blocks
    ]
    for row, alike in groupby(range(len(rows)), key=rows.__getitem__):
        numbers = list(alike)
        table.add_row(_range(numbers[0], numbers[-1]), *row)
    return table


def decisions_left(pins: Pins, program: Program) -> str:
    """What a search has to decide, once alike groups are tied and what is impossible or pinned is left out."""
    stages = pins.stage_counts()
    meshes = {count: pins.meshes(count) for count in stages}
    sizes = sorted({model for own in meshes.values() for _, model in own if model > 1})
    free = [
        group
        for group in sorted(shardable_groups(program))
        if group not in pins.groups and any(program.groups[group].divisor % size == 0 for size in sizes)
    ]
    micro = sorted({m for count in stages for data, _ in meshes[count] for m in pins.micro_batch_counts(count, data)})
    parts = [
        f"stages {_numbers(stages)}" + (f" of {len(program.blocks)} blocks" if stages[-1:] > (1,) else ""),
        f"micro-batches {_numbers(micro)}",
        f"mesh ({sum(map(len, meshes.values()))} ways)",
        f"ZeRO {pins.storage or ', '.join(STORAGES)}",
        f"{len(free)} of {len(program.groups)} groups (together {sum(g.tied for g in program.groups)} before tying)",
    ]
    return f"decisions left: {'; '.join(parts)}"


def left_out(program: Program) -> list[str]:
    """What a search leaves out as the step cannot be cut that way, and why, with the user's line."""
    analysis = program.batch_analysis
    if analysis is not None and analysis.refusals:
        return [f"left out, micro-batches and stages: {in_words(refusal)}" for refusal in analysis.refusals]
    for stages, what in ((1, "micro-batches and stages"), (2, "stages")):
        refusal = why_undivided(program, stages)
        if refusal is not None:
            return [f"left out, {what}: {in_words(refusal)}"]
    return []


def candidates(plan: Plan, decision: Decision, model: CostModel) -> Table:
    """Predicted step time and memory of the plan and of each baseline, and their time by data parallelism's; what the
    search left out."""
    caption = [
        f"this plan: found by {plan.origin.searcher}; vs DP below 1: faster than pure data parallelism",
        "pp: stages, dp: data, tp: model, mb: micro-batches; the rest of a pipeline's step is waiting (bubble)",
        *left_out(model.program),
    ]
    table = plain_table(f"Plans for {model.cluster.describe()}, predicted", "\n".join(caption))
    for name in ("plan", "mesh", "ZeRO"):
        table.add_column(name, no_wrap=True)
    for name in ("step", "compute", "comm.", "memory", "fits", "vs DP"):
        table.add_column(name, justify="right", no_wrap=True)
    known = baselines(model.program, model.cluster)
    estimates = {name: model.estimate(other) for name, other in known.items() if other is not None}
    reference = estimates.get("data_parallel")
    rows = [("this plan", decision, model.estimate(decision))]
    rows += [(name, known[name] or decision, estimate) for name, estimate in estimates.items()]
    for name, own, estimate in rows:
        table.add_row(
            name,
            short_mesh(own),
            "-" if own.storage == "none" else own.storage,
            format_seconds(estimate.step_seconds),
            format_seconds(estimate.compute),
            format_seconds(estimate.communication),
            format_bytes(estimate.memory.total),
            "yes" if estimate.fits else "no",
            _ratio(estimate, reference),
            style="bold" if name == "this plan" else None,
        )
    for name in [name for name, own in known.items() if own is None]:
        table.add_row(name, "impossible here", *["-"] * 7, style="dim")
    return table


def groups(plan: Plan, model: CostModel) -> Table:
    """The linkage groups, the batch first: sizes, axis, parameters, and the cost of deciding otherwise.

    Groups of activations alone that stay whole are only counted.
    """
    flips = flips_of(decision_of(plan, model.program), model)
    hidden = [c for c in plan.groups if c.axis is None and model.program.groups[c.id].kind == "activation"]
    caption = f"and {len(hidden)} group{'s'[: len(hidden) > 1]} of activations alone, not sharded" if hidden else None
    table = plain_table("Groups of dims that are sharded alike", caption)
    table.add_column("id", justify="right", no_wrap=True)
    for name in ("sizes", "axis", "parameters", "if flipped"):
        table.add_column(name, no_wrap=True)
    root = _root(model.program)
    batch_first = sorted(plan.groups, key=lambda choice: choice.id != model.program.batch)
    for choice in [choice for choice in batch_first if choice not in hidden]:
        group = model.program.groups[choice.id]
        table.add_row(
            str(group.id),
            ", ".join(map(str, group.sizes[:2])) + (", …" if len(group.sizes) > 2 else ""),
            choice.axis or "-",
            _what(group, choice, root),
            "" if group.kind == "batch" else _if_flipped(flips.get(group.id), choice, plan.mesh.get("model", 1)),
            style=None if choice.axis else "dim",
        )
    return table


def stages(plan: Plan, decision: Decision, model: CostModel) -> Table:
    """The stages of a pipeline, or the one that accumulates gradients: seconds of all micro-batches, and memory."""
    m = decision.micro_batches
    runs = model.stages(decision)
    flying = in_flight(decision.schedule, decision.stages, m)
    table = plain_table(
        f"Stages: {m} micro-batch{'es'[: 2 * (m > 1)]}, schedule {decision.schedule}",
        "seconds of a step; once: casts and gathering before, gradient reduction and update after",
    )
    table.add_column("stage", justify="right", no_wrap=True)
    for name in ("blocks", "devices"):
        table.add_column(name, no_wrap=True)
    for name in ("forward", "backward", "once", "in flight", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, stage in enumerate(plan.stages):
        table.add_row(
            str(number),
            _range(*stage.blocks),
            _range(stage.devices[0], stage.devices[-1]),
            format_seconds(m * float(runs.forward[number])),
            format_seconds(m * float(runs.backward[number] + runs.weight[number])),
            format_seconds(float(runs.before[number] + runs.after[number])),
            str(flying[number]),
            format_bytes(round(float(runs.memory(np.array(flying))[number]))),
        )
    return table


def time_spent(decision: Decision, model: CostModel) -> Table:
    """Seconds of each part of the step and of each kind of collective, costliest first; of a pipeline, of the stage
    that is busy longest."""
    table = plain_table("Where a step's time goes, predicted", _BUSIEST if decision.stages > 1 else None)
    for name in ("what", "time", "share", "bytes/device", "collectives"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    estimate = model.estimate(decision)
    breakdown = model.breakdown(decision)
    rows = [(f"{part}: compute", seconds, "", "") for part, seconds in breakdown.compute.items()]
    rows.append(("bubble: waiting for other stages", estimate.bubble, "", ""))
    for use in breakdown.collectives:
        axis = _AXES.get(use.axis, use.axis)
        name = f"{use.kind.replace('_', '-')} over {axis}"
        rows.append((name, use.seconds, format_bytes(use.bytes), str(use.count)))
    for name, seconds, size, count in sorted(rows, key=lambda row: -row[1]):
        if seconds > 0:
            table.add_row(name, format_seconds(seconds), f"{100 * seconds / estimate.step_seconds:.0f} %", size, count)
    return table


def describe_mesh(decision: Decision) -> str:
    """`data 4 x model 2, ZeRO: optimizer`, `4 stages of data 2, 8 micro-batches (1f1b)`."""
    mesh = _mesh(decision)
    if decision.stages > 1:
        mesh = f"{decision.stages} stages of {mesh}"
    if decision.micro_batches > 1:
        mesh += f", {decision.micro_batches} micro-batches"
    if decision.stages > 1:
        mesh += f" ({decision.schedule})"
    return mesh if decision.storage == "none" else f"{mesh}, ZeRO: {decision.storage}"


def _root(program: Program) -> str:
    return common_root([program.step.arguments[k].path for k in program.parameters])


def plain_table(title: str, caption: str | None = None) -> Table:
    """An empty table in the style of all of ours."""
    return Table(
        title=f"\n{title}",
        caption=caption,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )


def _mesh(decision: Decision) -> str:
    parts = [f"{axis} {size}" for axis, size in (("data", decision.data), ("model", decision.model)) if size > 1]
    return " x ".join(parts) or "1 device"


def short_mesh(decision: Decision) -> str:
    """The mesh; with stages or micro-batches in few characters: `pp4 dp2 tp2 mb8`."""
    if decision.stages == decision.micro_batches == 1:
        return _mesh(decision)
    sizes = (("pp", decision.stages), ("dp", decision.data), ("tp", decision.model), ("mb", decision.micro_batches))
    return " ".join(f"{name}{size}" for name, size in sizes if size > 1)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} - {last}"


def _ratio(estimate: Estimate, reference: Estimate | None) -> str:
    return "-" if reference is None else _times(estimate.step_seconds / reference.step_seconds)


def _times(ratio: float) -> str:
    """A ratio to two decimals, or to three digits where it is large: `0.80x`, `26.3x`, `180x`."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:.0f}x"


def _what(group: Group, choice: GroupChoice, root: str) -> str:
    if group.kind == "batch":
        return "the batch"
    if not choice.members:
        return "activations"
    return some_names(choice.members, root)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _if_flipped(flip: Flip | None, choice: GroupChoice, model: int) -> str:
    if model == 1:
        return "-"
    if flip:
        return f"{_times(flip.time)} time, {_times(flip.memory)} memory"
    return "the only one sharded" if choice.axis else f"does not divide by {model}"
