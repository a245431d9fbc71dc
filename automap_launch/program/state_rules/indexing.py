"""Batch rules of operations that address dims by position: slices, gather, scatter, sort."""

from __future__ import annotations

from typing import Any

from automap_launch.program.batch_analysis import State
from automap_launch.program.state_rules.contraction import reduction_of
from automap_launch.program.state_rules.site import Site, batch, partial, rule


@rule("dynamic_slice")
def dynamic_slice(site: Site) -> list[State]:
    position, state = site.first_batch()
    if position or site.node.attributes["slice_sizes"][state.dim] != site.shape(0)[state.dim]:
        raise site.unsplit("a slice of the batch, or at a position that depends on it")
    return [state]


@rule("dynamic_update_slice")
def dynamic_update_slice(site: Site) -> list[State]:
    position, state = site.first_batch()
    if position > 1 or site.shape(0)[state.dim] != site.shape(1)[state.dim]:
        raise site.unsplit("an update of a part of the batch, or at a position that depends on it")
    site.cut(0, state.dim, state.outer)
    site.cut(1, state.dim, state.outer)
    return [state]


@rule("gather")
def gather(site: Site) -> list[State]:
    numbers = site.node.attributes["dimension_numbers"]
    rows = [d for d in range(len(site.result_shape())) if d not in numbers["offset_dims"]]
    index_dims = _index_dims(site, 1, numbers)
    if site.is_batch(1):
        along = site.state(1).dim
        if along not in index_dims:
            raise site.unsplit("positions that are made of several examples")
        outer = site.state(1).outer
        if along in numbers["index_batch"]:
            site.cut(0, numbers["operand_batch"][numbers["index_batch"].index(along)], outer)
        else:
            _count_within(site, numbers["index_map"], numbers["collapsed"], numbers["index_vector_dim"], along)
        return [batch(rows[index_dims.index(along)], outer)]
    state = site.state(0)
    if state.dim in numbers["operand_batch"]:
        along = numbers["index_batch"][numbers["operand_batch"].index(state.dim)]
        site.cut(1, along, state.outer)
        return [batch(rows[index_dims.index(along)], state.outer)]
    if site.node.attributes["slice_sizes"][state.dim] != site.shape(0)[state.dim]:
        raise site.unsplit("a choice of examples by their position in the batch (a permutation, a roll)")
    dropped = (*numbers["collapsed"], *numbers["operand_batch"])
    windows = [d for d in range(len(site.shape(0))) if d not in dropped]
    return [batch(numbers["offset_dims"][windows.index(state.dim)], state.outer)]


@rule("scatter")
def scatter(site: Site) -> list[State]:
    """Into a dim that holds the examples themselves: batch. Into another one, by position: a sum or extremum over
    the batch, if it begins with zero (an extremum: with anything)."""
    if len(site.node.results) != 1:
        raise site.unsplit("a scatter of several tensors")
    numbers = site.node.attributes["scatter_dimension_numbers"]
    window = numbers["update_window"]
    rows = [d for d in range(len(site.shape(2))) if d not in window]
    index_dims = _index_dims(site, 1, numbers)
    along: int | None = None
    outer = 1
    if site.is_batch(1):
        along, outer = site.state(1).dim, site.state(1).outer
        if along not in index_dims:
            raise site.unsplit("positions that are made of several examples")
    elif site.is_batch(2) and site.state(2).dim in rows:
        along, outer = index_dims[rows.index(site.state(2).dim)], site.state(2).outer
    elif site.is_batch(0) and site.state(0).dim in numbers["operand_batch"]:
        along = numbers["index_batch"][numbers["operand_batch"].index(site.state(0).dim)]
        outer = site.state(0).outer
    if along is None:
        return _scatter_windows(site, numbers)
    site.cut(1, along, outer)
    site.cut(2, rows[index_dims.index(along)], outer)
    if along in numbers["index_batch"]:
        target = numbers["operand_batch"][numbers["index_batch"].index(along)]
        site.cut(0, target, outer)
        return [batch(target, outer)]
    counted = _count_within(site, numbers["index_map"], numbers["inserted"], numbers["index_vector_dim"], along)
    if counted is not None:
        return [batch(counted)]
    reduction = reduction_of(site.node.reducer, site.graph.values[site.node.results[0]].dtype)
    if reduction is None:
        raise site.unsplit("values of examples that overwrite each other by position")
    operand = site.state(0)
    begins = operand.kind == "partial" and operand.reduction == reduction
    if not (begins or (operand.kind == "none" and (reduction != "add" or site.is_zero(0)))):
        raise site.unsplit("a sum over examples by position that begins with another value than zero")
    return [partial(reduction)]


def _scatter_windows(site: Site, numbers: dict[str, Any]) -> list[State]:
    """The batch is a dim of the windows: it goes through if they cover it."""
    position, state = site.first_batch()
    window = numbers["update_window"]
    dropped = (*numbers["inserted"], *numbers["operand_batch"])
    windows = [d for d in range(len(site.shape(0))) if d not in dropped]
    target = state.dim if position == 0 else windows[window.index(state.dim)]
    if target not in windows or site.shape(2)[window[windows.index(target)]] != site.shape(0)[target]:
        raise site.unsplit("an update of some examples by their position in the batch")
    site.cut(0, target, state.outer)
    site.cut(2, window[windows.index(target)], state.outer)
    return [batch(target, state.outer)]


def _index_dims(site: Site, position: int, numbers: dict[str, Any]) -> list[int]:
    return [d for d in range(len(site.shape(position))) if d != numbers["index_vector_dim"]]


def _count_within(
    site: Site, index_map: tuple[int, ...], single: tuple[int, ...], vector_dim: int, along: int
) -> int | None:
    """The operand's dim that is addressed by `arange(batch)`, if one is: each example then meets its own element
    alone, the operand is cut like the batch, and that column of the positions counts within the micro-batch.

    Args:
      index_map: the operand dim that each column of the positions addresses.
      single: operand dims of which one element is addressed at a time.
      vector_dim: dim of the positions that holds the columns. along: the one that holds the batch.

    Raises:
      UnsplitError: the operand holds the batch, and examples are addressed otherwise.
    """
    joined, node = site.makers.get(site.node.operands[1], (-1, site.node))
    columns = node.operands if node.name == "concatenate" and node.attributes["dimension"] == vector_dim else []
    if len(columns) == len(index_map) and site.state(1).outer == 1 and site.is_batch(1) and not site.denied:
        for position, (column, dim) in enumerate(zip(columns, index_map, strict=True)):
            whole = site.shape(0)[dim] == site.shape(1)[along] and site.states[column].kind == "none"
            if whole and dim in single and counts(site, column) == along:
                site.cut(0, dim)
                site.columns.append((joined, position))
                return dim
    if site.is_batch(0):
        raise site.unsplit(
            "the use of positions that count over the batch in one place and within it in another"
            if site.denied
            else "a choice of examples by their position in the batch (a permutation, a roll)"
        )
    return None


def counts(site: Site, value: int) -> int | None:
    """The dim along which a value surely counts 0, 1, 2 ...; None where that is not certain.

    `arange` is an iota or a table; indexing wraps it in `select(i < 0, i + n, i)`, conversions and added dims.
    """
    made = site.makers.get(value)
    if made is None or not site.graph.values[value].dtype.startswith(("int", "uint")):
        return None
    node = made[1]
    if node.name == "iota":
        return int(node.attributes["iota_dimension"])
    if node.name == "constant":
        return 0 if node.attributes["value"] == "count" else None
    if node.name == "convert":
        return counts(site, node.operands[0])
    if node.name == "select":
        test = site.makers.get(node.operands[0])
        if test is None or test[1].name != "compare" or test[1].attributes["comparison_direction"] != "LT":
            return None
        left, right = test[1].operands
        found = counts(site, node.operands[2])
        return found if right in site.zeros and counts(site, left) == found else None
    if node.name not in ("broadcast_in_dim", "reshape"):
        return None
    inner = counts(site, node.operands[0])
    if inner is None:
        return None
    source, target = site.graph.shape(node.operands[0]), site.graph.shape(value)
    if node.name == "broadcast_in_dim":
        return int(node.attributes["broadcast_dimensions"][inner])
    kept = [d for d in range(len(source)) if source[d] != 1]
    moved = [d for d in range(len(target)) if target[d] != 1]
    same = [source[d] for d in kept] == [target[d] for d in moved]
    return moved[kept.index(inner)] if same and inner in kept else None


@rule("sort", "top_k")
def sort(site: Site) -> list[State]:
    """A call of a library for the best of a row takes one operand, a sort as many as it has results."""
    _, state = site.first_batch()
    along = site.node.attributes.get("dimension", len(site.shape(0)) - 1)
    if state.dim == along:
        raise site.unsplit("a sort of the batch, or the best of it")
    for position in range(len(site.node.results) if site.node.name == "sort" else 1):
        site.cut(position, state.dim, state.outer)
    return site.every(state)
