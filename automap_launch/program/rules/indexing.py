"""Rules of operations that address a dim by position: gather, scatter, dynamic slices, sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from automap_launch.program.graph import Node
from automap_launch.program.rules.relations import Relations, rule

ShapeOf = Callable[[int], tuple[int, ...]]


@rule("dynamic_slice")
def dynamic_slice(r: Relations) -> None:
    operand, result = r.node.operands[0], r.node.results[0]
    _window(r, operand, result)


@rule("dynamic_update_slice")
def dynamic_update_slice(r: Relations) -> None:
    operand, update = r.node.operands[:2]
    result = r.node.results[0]
    r.link_all(operand, result)
    _window(r, operand, update)


def _window(r: Relations, operand: int, window: int) -> None:
    """Dims that the window covers go through. One that a loop walks element by element (a layer of a stack, a step
    of a sequence) could only ever be gathered again in each round: it is never sharded."""
    for dim, (size, width) in enumerate(zip(r.shape(operand), r.shape(window), strict=True)):
        if width == size:
            r.link((operand, dim), (window, dim))
        elif r.node.in_loop and width == 1:
            r.walked.append((operand, dim))
        else:
            r.keep_whole((operand, dim), (window, dim))
            r.cut.append((operand, dim))


@rule("gather")
def gather(r: Relations) -> None:
    """Indexed dims with windows of one element are looked up on the device that holds them and summed over devices;
    window dims and batching dims go through. `x[arange(n), i]` counts as batching, as it does for XLA."""
    numbers, widths = r.node.attributes["dimension_numbers"], r.node.attributes["slice_sizes"]
    operand, indices = r.node.operands
    result = r.node.results[0]
    shape = r.shape(operand)
    rows = [d for d in range(len(r.shape(result))) if d not in numbers["offset_dims"]]
    index_dims = [d for d in range(len(r.shape(indices))) if d != numbers["index_vector_dim"]]
    for index_dim, row in zip(index_dims, rows, strict=True):
        r.link((indices, index_dim), (result, row))
    batching = dict(zip(numbers["operand_batch"], numbers["index_batch"], strict=True))
    batching.update(_counted(r, indices, numbers, shape, widths))
    for dim, index_dim in batching.items():
        r.link((operand, dim), (indices, index_dim))
    dropped = (*numbers["collapsed"], *numbers["operand_batch"])
    windows = [d for d in range(len(shape)) if d not in dropped]
    for dim, target in zip(windows, numbers["offset_dims"], strict=True):
        if widths[dim] == shape[dim]:
            r.link((operand, dim), (result, target))
        elif widths[dim] > 1:
            r.keep_whole((operand, dim), (result, target))
    for dim in numbers["index_map"]:
        if dim not in batching and shape[dim] > 1 and widths[dim] == 1:
            r.contracted.append((0, dim))
    _keep_index_vector(r, indices, numbers)


@rule("scatter")
def scatter(r: Relations) -> None:
    """The reverse of a gather: each device adds the updates it holds, so that sharded update rows leave a partial
    sum; a sharded indexed dim takes what falls into its part."""
    numbers = r.node.attributes["scatter_dimension_numbers"]
    count = len(r.node.results)
    indices = r.node.operands[count]
    index_dims = [d for d in range(len(r.shape(indices))) if d != numbers["index_vector_dim"]]
    for position, result in enumerate(r.node.results):
        operand, updates = r.node.operands[position], r.node.operands[count + 1 + position]
        shape = r.shape(operand)
        r.link_all(operand, result)
        window = numbers["update_window"]
        rows = [d for d in range(len(r.shape(updates))) if d not in window]
        widths = [1] * len(shape)
        dropped = (*numbers["inserted"], *numbers["operand_batch"])
        windows = [d for d in range(len(shape)) if d not in dropped]
        for dim, source in zip(windows, window, strict=True):
            widths[dim] = r.shape(updates)[source]
            if widths[dim] == shape[dim]:
                r.link((operand, dim), (updates, source))
            elif widths[dim] > 1:
                r.keep_whole((operand, dim), (updates, source))
        batching = dict(zip(numbers["operand_batch"], numbers["index_batch"], strict=True))
        batching.update(_counted(r, indices, numbers, shape, tuple(widths)))
        for dim, index_dim in batching.items():
            r.link((operand, dim), (indices, index_dim))
        adds = count == 1 and r.node.reducer in ("add", "maximum", "minimum", "multiply", "or", "and")
        for index_dim, row in zip(index_dims, rows, strict=True):
            r.link((indices, index_dim), (updates, row))
            if index_dim in batching.values() or r.shape(updates)[row] == 1:
                continue
            if adds:
                r.contracted.extend([(count, index_dim), (count + 1 + position, row)])
            else:
                r.keep_whole((indices, index_dim), (updates, row))
    _keep_index_vector(r, indices, numbers)


def _keep_index_vector(r: Relations, indices: int, numbers: dict[str, Any]) -> None:
    dim = numbers["index_vector_dim"]
    if dim < len(r.shape(indices)):
        r.keep_whole((indices, dim))


def _counted(
    r: Relations, indices: int, numbers: dict[str, Any], shape: tuple[int, ...], widths: tuple[int, ...]
) -> dict[int, int]:
    """Operand dims addressed by their own position along an index dim: {operand dim: index dim}.

    Indices made by concatenating columns say so when a column is a count (an iota) over the index dim.
    """
    vector = numbers["index_vector_dim"]
    joined = r.producers.get(indices)
    if joined is None or joined.name != "concatenate" or joined.attributes["dimension"] != vector:
        return {}
    out: dict[int, int] = {}
    if len(joined.operands) != len(numbers["index_map"]):
        return {}
    for column, dim in zip(joined.operands, numbers["index_map"], strict=True):
        if widths[dim] != 1:
            continue
        counted = count_dim(r.producers, column, r.graph.shape)
        if counted is not None and r.shape(indices)[counted] == shape[dim] and counted not in out.values():
            out[dim] = counted
    return out


def count_dim(producers: dict[int, Node], value: int, shape: ShapeOf) -> int | None:
    """The dim along which a value counts 0, 1, 2 ..., if it does; JAX wraps the iota of `arange` in a test for
    negative positions, a conversion, reshapes and broadcasts."""
    node = producers.get(value)
    if node is None:
        return None
    if node.name == "iota":
        return int(node.attributes["iota_dimension"])
    if node.name == "convert":
        return count_dim(producers, node.operands[0], shape)
    if node.name == "select":
        return count_dim(producers, node.operands[2], shape)
    inner = count_dim(producers, node.operands[0], shape) if node.name in ("broadcast_in_dim", "reshape") else None
    if inner is None:
        return None
    if node.name == "broadcast_in_dim":
        return int(node.attributes["broadcast_dimensions"][inner])
    source, target = shape(node.operands[0]), shape(value)
    kept = [d for d in range(len(source)) if source[d] != 1]
    moved = [d for d in range(len(target)) if target[d] != 1]
    same = [source[d] for d in kept] == [target[d] for d in moved]
    return moved[kept.index(inner)] if same and inner in kept else None


@rule("sort")
def sort(r: Relations) -> None:
    values = (*r.node.operands, *r.node.results)
    along = r.node.attributes.get("dimension", len(r.shape(values[0])) - 1)
    for value in values[1:]:
        r.link_all(values[0], value, skip=(along,))
    for value in values:
        r.keep_whole((value, along))


@rule("top_k")
def top_k(r: Relations) -> None:
    """Every dim but the last goes through; but XLA's partitioner runs it on whole operands, whatever shards them."""
    sort(r)
    for value in r.node.operands:
        r.keep_whole(*((value, dim) for dim in range(len(r.shape(value)))))
