"""`analyse`: a captured step becomes a `Program`. Pure: no device, no front end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from automap_launch.errors import CaptureError
from automap_launch.program.batch import batch_arguments, batch_class
from automap_launch.program.blocks import MAX_BLOCKS, find_blocks
from automap_launch.program.divide import arrays_of_state, best_way, calls_back
from automap_launch.program.flatten import flatten
from automap_launch.program.flops import flops_of, is_fusable
from automap_launch.program.graph import Graph, Node, where
from automap_launch.program.linkage import Linkage, link
from automap_launch.program.mlir import read_module
from automap_launch.program.ownership import Owners
from automap_launch.program.parts import split_parts
from automap_launch.program.program import Group, GroupKind, Op, Program
from automap_launch.program.rules import Dim
from automap_launch.program.ties import tie
from automap_launch.train_step import TrainStep


def analyse(
    step: TrainStep,
    platform: str = "cpu",
    local_statistics: bool = False,
    max_blocks: int = MAX_BLOCKS,
    tie_layers: bool = True,
) -> Program:
    """Groups, batch, parts and costs of a step.

    Args:
      step: as captured.
      platform: which of the step's modules to read.
      local_statistics: allow micro-batches statistics of their own (batch norm).
      max_blocks: into which the forward part is cut at most.
      tie_layers: isomorphic groups of repeated layers are one group; without, each is decided by itself.

    Raises:
      CaptureError: the step holds no module for `platform`, its module is damaged or does not match its arguments,
        or it has tensors of unknown shape.
    """
    if platform not in step.modules:
        raise CaptureError(f"the step was lowered for {', '.join(step.platforms)}, not for {platform}")
    module = read_module(step.modules[platform])
    graph = flatten(module, step.sources)
    for what, got, expected in (
        ("arguments", len(graph.arguments), len(step.arguments)),
        ("results", len(graph.results), len(step.results)),
    ):
        if got != expected:
            raise CaptureError(
                f"the step's module has {got} {what}, its record {expected}: the two are of different captures"
            )
    linkage = link(graph, _replaced(graph, step), _keys(graph, step))
    for k in linkage.unknown:
        graph.note(_unknown(graph.nodes[k]))
    batch, note = batch_class(graph, linkage, step.arguments)
    if note:
        graph.note(note)
    linkage = linkage.without(linkage.cut - {batch})
    has_batch = [batch is not None and batch in dims for dims in linkage.classes]
    parts = split_parts(graph, step, has_batch)
    ways = batch_arguments(graph, linkage, batch, step.arguments)
    state = arrays_of_state(graph, [k for k, argument in enumerate(step.arguments) if argument.role == "state"])
    batch_analysis = best_way(graph, module, ways, state, sources=step.sources, local_statistics=local_statistics)
    if step.has_callbacks:
        batch_analysis = replace(batch_analysis, refusals=(calls_back(graph),), max_micro_batches=1)
    trained = {graph.arguments[k]: step.arguments[k].path for k in parts.parameters}
    classes = {item for dims in linkage.classes for item in dims if item is not None}
    together = tie(graph, linkage, alone=batch) if tie_layers else [[item] for item in sorted(classes)]
    groups, number = _groups(graph, linkage, trained, batch, together)
    read_batch = [k for k, argument in enumerate(step.arguments) if argument.role == "batch"]
    blocks, homes = find_blocks(graph, parts, Owners(graph, step, parts), read_batch, max_blocks)
    return Program(
        step=step,
        values=tuple(graph.values),
        ops=tuple(
            Op(
                name=node.name,
                operands=tuple(node.operands),
                results=tuple(node.results),
                times=node.times,
                flops=flops_of(graph, node),
                contracted=linkage.contracted[k],
                whole=linkage.whole[k],
                fusable=is_fusable(node),
                loop=node.loop,
                part=parts.parts[k],
                source=node.source,
            )
            for k, node in enumerate(graph.nodes)
        ),
        arguments=tuple(graph.arguments),
        results=tuple(graph.results),
        parameters=parts.parameters,
        groups=groups,
        batch=None if batch is None else number[batch],
        dim_groups=tuple(tuple(None if c is None else number[c] for c in dims) for dims in linkage.classes),
        notes=tuple(graph.notes),
        batch_analysis=batch_analysis,
        blocks=blocks,
        homes=homes,
    )


def _unknown(node: Node) -> str:
    target = str(node.attributes.get("call_target_name", node.name))
    name = "a call back into Python" if "callback" in target else f"{target} (no rule for this operation)"
    return f"{name}{where(node.source)}: its tensors are whole there, on every device"


def _replaced(graph: Graph, step: TrainStep) -> list[tuple[int, int]]:
    """State arguments and what replaces them: sharded alike, or each step would begin by moving state."""
    return [
        (graph.arguments[result.replaces], value)
        for value, result in zip(graph.results, step.results, strict=True)
        if result.replaces is not None and graph.shape(value) == graph.shape(graph.arguments[result.replaces])
    ]


def _keys(graph: Graph, step: TrainStep) -> list[Dim]:
    """Dims of PRNG keys: typed ones, and raw ones (a few uint32 words in the last dim)."""
    out: list[Dim] = []
    for argument, value in zip(step.arguments, graph.arguments, strict=True):
        kind = graph.values[value]
        typed = argument.dtype.startswith("key<")
        if typed or (argument.role != "batch" and kind.dtype == "uint32" and kind.shape[-1:] in ((2,), (4,))):
            out.extend((value, dim) for dim in range(len(kind.shape)))
    return out


def _groups(
    graph: Graph, linkage: Linkage, trained: Mapping[int, str], batch: int | None, together: Iterable[Sequence[int]]
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """Groups in their final order, and each class's group id.

    Args:
      trained: path of each parameter, by its value. together: the classes of each group.
    """
    dims: dict[int, list[Dim]] = defaultdict(list)
    for value, classes in enumerate(linkage.classes):
        for dim, item in enumerate(classes):
            if item is not None:
                dims[item].append((value, dim))
    made = []
    for tied in together:
        sites = sorted(site for item in tied for site in dims[item])
        values = dict.fromkeys(value for value, _ in sites)
        members = tuple(trained[v] for v in values if v in trained)
        kind: GroupKind = "batch" if batch in tied else "parameter" if members else "activation"
        group = Group(
            id=0,
            kind=kind,
            sizes=tuple(sorted({graph.shape(value)[dim] for value, dim in sites})),
            members=members,
            dims=tuple(sites),
            bytes=sum(graph.values[v].bytes for v in values),
            tied=len(tied),
        )
        made.append((group, tied))
    made.sort(key=lambda pair: (pair[0].kind != "batch", -pair[0].bytes, pair[0].dims[0]))
    groups = tuple(replace(group, id=k) for k, (group, _) in enumerate(made))
    return groups, {item: k for k, (_, tied) in enumerate(made) for item in tied}
