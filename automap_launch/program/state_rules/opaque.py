"""Batch rules of calls into a library, and what is assumed of an operation without a rule."""

from __future__ import annotations

from automap_launch.program.batch_analysis import State
from automap_launch.program.rules.opaque import ELEMENTWISE_CALLS, IDENTITY_CALLS, MATRIX_CALLS
from automap_launch.program.state_rules.site import RULES, Site, rule


@rule("custom_call")
def custom_call(site: Site) -> list[State]:
    target = site.node.attributes.get("call_target_name", "")
    _, state = site.first_batch()
    if target in IDENTITY_CALLS or target.startswith(ELEMENTWISE_CALLS):
        shapes = {site.result_shape(k) for k in range(len(site.node.results))}
        if len(shapes) != 1:
            return unknown(site)
        for position in range(len(site.node.operands)):
            if site.shape(position) in shapes:
                site.cut(position, state.dim, state.outer)
            elif site.is_batch(position):
                return unknown(site)
        return site.every(state)
    if target.endswith("topk"):
        return RULES["top_k"](site)
    if target.startswith(MATRIX_CALLS):
        return _matrices(site)
    return unknown(site)


def _matrices(site: Site) -> list[State]:
    """Linear algebra on the last two dims, over leading dims that all its tensors share."""
    _, state = site.first_batch()
    leading = site.shape(0)[:-2]
    tensors = [site.shape(k) for k in range(len(site.node.operands))]
    results = [site.result_shape(k) for k in range(len(site.node.results))]
    if state.dim >= len(leading) or any(shape[: len(leading)] != leading for shape in (*tensors, *results)):
        raise site.unsplit("linear algebra across the batch")
    for position in range(len(tensors)):
        site.cut(position, state.dim, state.outer)
    return site.every(state)


def unknown(site: Site) -> list[State]:
    """Nothing is known of what it does with the examples."""
    name = str(site.node.attributes.get("call_target_name", site.node.name))
    if name == "while":
        raise site.unsplit("a loop whose length is not known beforehand, or too long to be unrolled,", "loop")
    if "callback" in name:
        name = "a call back into Python"
    raise site.unsplit(f"{name}, which the analysis cannot look into,", "opaque")
