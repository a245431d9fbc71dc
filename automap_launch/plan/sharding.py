"""From a decision to shardings: which mesh axis each dim of a tensor gets.

A linkage group is on one axis or on none. A tensor may have several dims on an axis (a D x D weight, T x T scores);
an axis shards a tensor once, so the dim of the largest group gets it (groups are numbered by size), and the first of
that group's dims.

The compiler is told the shardings of the step's arguments and spreads them from there. So a group that gets no dim of
any argument, because larger ones do or because it is of activations alone, is sharded nowhere: `carried` leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping

from automap_launch.plan.decision import Decision
from automap_launch.plan.layout import Spec
from automap_launch.program.batch_analysis import Refusal
from automap_launch.program.divide import why_undivided
from automap_launch.program.program import Program

DATA, MODEL = "data", "model"

Groups = tuple[int | None, ...]


def mesh_of(decision: Decision) -> dict[str, int]:
    """Size by axis, major axis first. Both axes are always there, so that every sharding may name them."""
    return {DATA: decision.data, MODEL: decision.model}


def axes_of(program: Program, decision: Decision) -> dict[int, str]:
    """The axis of every group that is sharded. Axes of size 1 shard nothing and are left out."""
    axes = {}
    if program.batch is not None and decision.data > 1:
        axes[program.batch] = DATA
    if decision.model > 1:
        axes.update(dict.fromkeys(carried(decision.sharded, rivals_of(program)), MODEL))
    return axes


def shardable_groups(program: Program) -> frozenset[int]:
    """The groups that the axis `model` can shard where it divides them: some argument has a dim in them."""
    carried_by_some = {g for value in program.arguments for g in program.dim_groups[value] if g is not None}
    return frozenset(carried_by_some - {program.batch})


def rivals_of(program: Program) -> dict[int, frozenset[frozenset[int]]]:
    """By group, for each parameter and batch argument with a dim in it the larger groups in the same one, which go
    before it. The optimizer's state does not count: its sharding does not spread to the forward and backward parts."""
    found: dict[int, set[frozenset[int]]] = {}
    parameters = set(program.parameters)
    for index, value in enumerate(program.arguments):
        if index not in parameters and program.step.arguments[index].role == "state":
            continue
        groups = frozenset(g for g in program.dim_groups[value] if g is not None)
        for group in groups:
            found.setdefault(group, set()).add(frozenset(g for g in groups if g < group))
    return {group: frozenset(rivals) for group, rivals in found.items()}


def carried(sharded: frozenset[int], rivals: Mapping[int, frozenset[frozenset[int]]]) -> frozenset[int]:
    """The groups of `sharded` that shard some parameter or batch argument. `rivals`: of `rivals_of`."""
    return frozenset(g for g in sharded if any(sharded.isdisjoint(larger) for larger in rivals.get(g, ())))


def spec_of(groups: Groups, shape: tuple[int, ...], axes: Mapping[int, str], mesh: Mapping[str, int]) -> Spec:
    """The sharding of a tensor: for each dim its axis or None; an axis at most once, and only where it divides."""
    spec: list[str | None] = [None] * len(shape)
    for group, dim in sorted((group, dim) for dim, group in enumerate(groups) if group is not None):
        axis = axes.get(group)
        if axis is not None and axis not in spec and shape[dim] % mesh[axis] == 0:
            spec[dim] = axis
    return tuple(spec)


def storage_spec(compute: Spec, shape: tuple[int, ...], mesh: Mapping[str, int], layers: bool = False) -> Spec:
    """`compute` with the data axis added on the first free dim that it divides; `compute` itself where none is.

    Args:
      layers: the first dim is one of layers that lie on several stages, of which no stage may have as many as the axis
        divides: it stays as it is.
    """
    if mesh[DATA] == 1 or DATA in compute:
        return compute
    for dim, size in enumerate(shape):
        if layers and dim == 0:
            continue
        if compute[dim] is None and size > 0 and size % mesh[DATA] == 0:
            return (*compute[:dim], DATA, *compute[dim + 1 :])
    return compute


def why_invalid(program: Program, decision: Decision, shardable: frozenset[int] | None = None) -> str | None:
    """Why a decision cannot be carried out for this program, or None when it can.

    Args:
      shardable: `shardable_groups(program)`, where it is at hand.
    """
    if shardable is None:
        shardable = shardable_groups(program)
    if decision.stages > 1 or decision.micro_batches > 1:
        why = why_not_cut(program, decision.stages, decision.data * decision.micro_batches)
        if why is not None:
            return f"stages={decision.stages} micro_batches={decision.micro_batches}: {why}"
    if decision.cuts and decision.cuts[-1] >= len(program.blocks):
        return (
            f"cuts={list(decision.cuts)}: the step has {len(program.blocks)} blocks, so the last stage can begin with "
            f"block {len(program.blocks) - 1} at the latest"
        )
    if decision.data > 1:
        if program.batch is None:
            return f"data={decision.data} shards the batch, and the step has no batch"
        batch = program.groups[program.batch]
        if batch.divisor % decision.data:
            return f"data={decision.data} does not divide the batch ({_sizes(batch.sizes)})"
    for group in sorted(decision.sharded):
        if not 0 <= group < len(program.groups):
            return f"there is no group {group}: the step has the groups 0 to {len(program.groups) - 1}"
        if group == program.batch:
            return f"group {group} is the batch: it goes to the axis {DATA}, not to {MODEL}"
        if group not in shardable:
            return f"group {group} has no dim in any argument of the step, and only arguments' shardings can be chosen"
        if program.groups[group].divisor % decision.model:
            sizes = _sizes(program.groups[group].sizes)
            return f"model={decision.model} does not divide group {group} ({sizes})"
    return None


def why_not_cut(program: Program, stages: int, parts: int = 1) -> str | None:
    """`why_undivided` in words, with what the user may do about it; None when the step can be cut."""
    refusal = why_undivided(program, stages, parts)
    return None if refusal is None else in_words(refusal)


def in_words(refusal: Refusal) -> str:
    """A reason and what the user may do about it."""
    return refusal.reason if refusal.hint is None else f"{refusal.reason}; {refusal.hint}"


def _sizes(sizes: tuple[int, ...]) -> str:
    return ("size " if len(sizes) == 1 else "sizes ") + ", ".join(map(str, sizes))
