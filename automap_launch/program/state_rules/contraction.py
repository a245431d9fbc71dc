"""Batch rules of operations that sum over dims or over windows of dims."""

from __future__ import annotations

from automap_launch.program.batch_analysis import State
from automap_launch.program.state_rules.site import Site, batch, partial, rule


@rule("dot_general")
def dot_general(site: Site) -> list[State]:
    numbers = site.node.attributes["dot_dimension_numbers"]
    position, state = site.first_batch()
    sides = ((numbers["lhs_batch"], numbers["lhs_contract"]), (numbers["rhs_batch"], numbers["rhs_contract"]))
    (batching, contracted), (other_batching, other_contracted) = sides[position], sides[1 - position]
    if state.dim in batching:
        place = batching.index(state.dim)
        site.cut(1 - position, other_batching[place], state.outer)
        return [batch(place, state.outer)]
    if state.dim in contracted:
        site.cut(1 - position, other_contracted[contracted.index(state.dim)], state.outer)
        return [partial("add")]
    if site.is_batch(1 - position):
        raise site.unsplit("a product of each example with each other example")
    free = [d for d in range(len(site.shape(position))) if d not in batching and d not in contracted]
    before = len(batching)
    if position == 1:
        before += len(site.shape(0)) - len(batching) - len(other_contracted)
    return [batch(before + free.index(state.dim), state.outer)]


@rule("convolution")
def convolution(site: Site) -> list[State]:
    """Forward and input gradient: the batch dim. Weight gradient: the batch is summed as the image's features."""
    numbers = site.node.attributes["dimension_numbers"]
    image, kernel = site.state(0), site.state(1)
    if image.kind == "batch" and kernel.kind != "batch":
        if image.dim == numbers["input_batch"] and site.node.attributes.get("batch_group_count", 1) == 1:
            return [batch(numbers["output_batch"], image.outer)]
    elif (
        image.kind == kernel.kind
        and (image.dim, kernel.dim) == (numbers["input_feature"], numbers["kernel_input"])
        and image.outer == kernel.outer
        and site.node.attributes.get("feature_group_count", 1) == 1
    ):
        return [partial("add")]
    raise site.unsplit("a convolution along the batch, or with weights for each example")


_REDUCTIONS = {"add": "add", "maximum": "max", "minimum": "min"}


def reduction_of(reducer: str | None, dtype: str) -> str | None:
    """How partial results of a reduction reduce further; None where they do not. On booleans any and all."""
    if dtype == "bool":
        return {"or": "max", "maximum": "max", "and": "min", "minimum": "min"}.get(reducer or "")
    return _REDUCTIONS.get(reducer or "")


@rule("reduce")
def reduce(site: Site) -> list[State]:
    """Micro-batches each begin with the initial value: a sum must begin with zero; an extremum may with anything."""
    _, state = site.first_batch()
    count = len(site.node.results)
    for position in range(count):
        site.cut(position, state.dim, state.outer)
    if any(site.state(k).kind != "none" for k in range(count, 2 * count)):
        raise site.unsplit("a reduction whose initial value depends on the batch")
    dims = site.node.attributes["dimensions"]
    if state.dim not in dims:
        return site.every(batch(state.dim - sum(d < state.dim for d in dims), state.outer))
    if count > 1:
        raise site.unsplit("a choice among the examples of the batch (argmax, argmin)")
    reduction = reduction_of(site.node.reducer, site.graph.values[site.node.results[0]].dtype)
    if reduction is None:
        raise site.unsplit(f"a reduction over the batch by {site.node.reducer or 'a function of its own'}")
    if reduction == "add" and not site.is_zero(1):
        raise site.unsplit("a sum over the batch that begins with another value than zero")
    return [partial(reduction)]


@rule("reduce_window")
def reduce_window(site: Site) -> list[State]:
    _, state = site.first_batch()
    attributes, rank, count = site.node.attributes, len(site.shape(0)), len(site.node.results)
    ones, nothing = (1,) * rank, ((0, 0),) * rank
    sizes = [
        attributes.get(name, ones)[state.dim]
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    ]
    if sizes != [1, 1, 1, 1] or attributes.get("padding", nothing)[state.dim] != (0, 0):
        raise site.unsplit("a window along the batch (a running sum, pooling)")
    for position in range(count):
        site.cut(position, state.dim, state.outer)
    return site.every(state)


@rule("select_and_scatter")
def select_and_scatter(site: Site) -> list[State]:
    _, state = site.first_batch()
    attributes, rank = site.node.attributes, len(site.shape(0))
    sizes = [attributes.get(name, (1,) * rank)[state.dim] for name in ("window_dimensions", "window_strides")]
    if sizes != [1, 1] or attributes.get("padding", ((0, 0),) * rank)[state.dim] != (0, 0):
        raise site.unsplit("a window along the batch (pooling)")
    for position in range(2):
        site.cut(position, state.dim, state.outer)
    return [state]


@rule("cholesky", "triangular_solve", "fft")
def matrix(site: Site) -> list[State]:
    _, state = site.first_batch()
    walked = len(site.node.attributes["fft_length"]) if site.node.name == "fft" else 2
    if state.dim >= len(site.result_shape()) - walked:
        raise site.unsplit(f"{site.node.name} along the batch")
    for position in range(len(site.node.operands)):
        site.cut(position, state.dim, state.outer)
    return [state]
