"""Operations on partial values: which of them the reduction over micro-batches may be moved behind.

A partial sum stays one under linear operations, a partial extremum under those that move elements; for the latter a
value without batch state is as good as a partial one (the maximum of equal values is the value).
"""

from __future__ import annotations

from automap_launch.program.batch_analysis import FULL, State
from automap_launch.program.rules.opaque import IDENTITY_CALLS
from automap_launch.program.state_rules.contraction import reduction_of
from automap_launch.program.state_rules.site import Site, partial

_MOVES = frozenset(
    ("transpose", "reshape", "broadcast_in_dim", "reverse", "optimization_barrier", "slice", "sharding_constraint")
)
_LINEAR = _MOVES | {"negate", "real", "imag", "conj"}


def reduced(site: Site) -> State:
    """State of the results of an operation on partial values and values without batch state."""
    states = [site.state(k) for k in range(len(site.node.operands))]
    reductions = {state.reduction for state in states if state.kind == "partial"}
    if len(reductions) > 1 or len(site.node.results) != 1:
        return FULL
    (reduction,) = reductions
    stays = _linear(site) if reduction == "add" else _order(site, reduction)
    return partial(reduction) if stays else FULL


def _partials(site: Site) -> list[bool]:
    return [site.state(k).kind == "partial" for k in range(len(site.node.operands))]


def _linear(site: Site) -> bool:
    partials = _partials(site)
    neutral = [is_partial or site.is_zero(k) for k, is_partial in enumerate(partials)]
    name = site.node.name
    result = site.graph.values[site.node.results[0]]
    if name in _LINEAR or (name == "custom_call" and site.node.attributes.get("call_target_name") in IDENTITY_CALLS):
        return True
    if name == "convert":
        return site.graph.values[site.node.operands[0]].is_float and result.is_float
    if name in ("add", "subtract", "concatenate", "pad", "complex"):
        return all(neutral)
    if name in ("multiply", "dot_general", "convolution"):
        return sum(partials) == 1
    if name == "divide":
        return not partials[1] and result.is_float
    if name in ("select", "branch"):
        return not partials[0] and all(neutral[1:])
    if name in ("dynamic_slice", "gather"):
        return not any(partials[1:])
    if name == "dynamic_update_slice":
        return all(neutral[:2]) and not any(partials[2:])
    if name in ("reduce", "reduce_window"):
        return reduction_of(site.node.reducer, result.dtype) == "add" and all(neutral)
    if name == "scatter":
        return reduction_of(site.node.reducer, result.dtype) == "add" and not partials[1] and neutral[0] and neutral[2]
    return False


def _order(site: Site, reduction: str) -> bool:
    partials = _partials(site)
    name = site.node.name
    result = site.graph.values[site.node.results[0]]
    if name in _MOVES or name in ("concatenate", "pad"):
        return True
    if name == "convert":
        source = site.graph.values[site.node.operands[0]]
        return source.dtype == "bool" or (source.is_float and result.is_float)
    if name in ("maximum", "minimum", "or", "and", "reduce"):
        reducer = site.node.reducer if name == "reduce" else name
        return reduction_of(reducer, result.dtype) == reduction
    if name in ("select", "branch"):
        return not partials[0]
    if name in ("dynamic_slice", "gather"):
        return not any(partials[1:])
    if name == "dynamic_update_slice":
        return not any(partials[2:])
    return False
