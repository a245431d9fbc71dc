"""Batch rules of operations that keep, copy or rearrange elements."""

from __future__ import annotations

import math

from automap_launch.program.batch_analysis import State
from automap_launch.program.rules.elementwise import ELEMENTWISE, IDENTITY
from automap_launch.program.state_rules.site import Site, batch, rule


@rule(*ELEMENTWISE, *IDENTITY)
def elementwise(site: Site) -> list[State]:
    _, state = site.first_batch()
    shape = site.result_shape()
    if site.node.name == "bitcast_convert" and len(site.shape(0)) != len(shape):
        if state.dim >= min(len(site.shape(0)), len(shape)):
            raise site.unsplit("a change of bit width along the batch")
        return site.every(state)
    for position in range(len(site.node.operands)):
        other = site.shape(position)
        if other == shape:
            site.cut(position, state.dim, state.outer)
        elif other:
            # Implicit broadcasting aligns dims by position: too rarely met to be worth a rule.
            raise site.unsplit("an elementwise operation on tensors of different shapes")
    return site.every(state)


@rule("broadcast_in_dim")
def broadcast_in_dim(site: Site) -> list[State]:
    state = site.state(0)
    return [batch(site.node.attributes["broadcast_dimensions"][state.dim], state.outer)]


@rule("transpose")
def transpose(site: Site) -> list[State]:
    state = site.state(0)
    return [batch(site.node.attributes["permutation"].index(state.dim), state.outer)]


@rule("reverse")
def reverse(site: Site) -> list[State]:
    state = site.state(0)
    if state.dim in site.node.attributes["dimensions"]:
        raise site.unsplit("a reversal of the batch")
    return [state]


@rule("reshape")
def reshape(site: Site) -> list[State]:
    state = site.state(0)
    found = reshaped(site.shape(0), site.result_shape(), state)
    if found is None:
        raise site.unsplit("a reshape that takes the batch apart")
    return [found]


def reshaped(source: tuple[int, ...], target: tuple[int, ...], state: State) -> State | None:
    """Where the cut of a tensor lands when it is reshaped, None where no dim of the target holds it.

    In row-major order a cut tensor reads (before, m, after), whatever m; the target's dim that begins at or before
    `before` and ends after it holds the cut.
    """
    before = math.prod(source[: state.dim]) * state.outer
    starts = [math.prod(target[:dim]) for dim in range(len(target))]
    dim = next((d for d, start in enumerate(starts) if start <= before < start * target[d]), None)
    if dim is None or before % starts[dim] or starts[dim] * target[dim] % before:
        return None
    return batch(dim, before // starts[dim])


@rule("slice")
def slice_(site: Site) -> list[State]:
    state = site.state(0)
    start, stop, stride = (
        site.node.attributes[name][state.dim] for name in ("start_indices", "limit_indices", "strides")
    )
    size = site.shape(0)[state.dim]
    if (start, stop, stride) == (0, size, 1):
        return [state]
    block = size // state.outer
    if stride == 1 and start % block == 0 and (stop - start) % block == 0:
        return [batch(state.dim, (stop - start) // block)]
    raise site.unsplit("a slice of the batch")


@rule("pad")
def pad(site: Site) -> list[State]:
    """Whole blocks may be added or taken away: the gradient of taking one of two views joined in one batch."""
    position, state = site.first_batch()
    low, high, interior = (
        site.node.attributes[name][state.dim] for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    block = site.shape(0)[state.dim] // state.outer if position == 0 else 0
    if position or interior or low % block or high % block:
        raise site.unsplit("padding of the batch (a shift, a running sum)")
    return [batch(state.dim, state.outer + (low + high) // block)]


@rule("concatenate")
def concatenate(site: Site) -> list[State]:
    """Along another dim all operands are cut alike. Along the batch each operand is one or more blocks, which must
    all be of one size: [x; y] of two views of the batch."""
    _, state = site.first_batch()
    along = site.node.attributes["dimension"]
    positions = range(len(site.node.operands))
    if along != state.dim:
        for position in positions:
            site.cut(position, state.dim, state.outer)
        return [state]
    blocks = {
        site.shape(k)[along] // site.state(k).outer
        for k in positions
        if site.is_batch(k) and site.state(k).dim == along
    }
    outer = 0
    for position in positions:
        size = site.shape(position)[along]
        if len(blocks) != 1 or size % min(blocks):
            raise site.unsplit("a concatenation along the batch of parts of different sizes")
        site.cut(position, along, size // min(blocks))
        outer += size // min(blocks)
    return [batch(along, outer)]
