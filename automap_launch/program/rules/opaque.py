"""Rules of calls into a library, and what is assumed of an operation without a rule."""

from __future__ import annotations

from automap_launch.program.rules.relations import RULES, Relations, rule

# Calls that leave each element where it is.
IDENTITY_CALLS = frozenset(
    ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "annotate_device_placement")
)
# Random bits: each result element from the element of equal position (the counter) and the key.
ELEMENTWISE_CALLS = ("cu_threefry2x32", "hip_threefry2x32")
# Linear algebra on the last two dims, batched over the others.
MATRIX_CALLS = ("lapack_", "cusolver", "cublas", "cu_lu", "hipsolver", "hipblas")


@rule("custom_call")
def custom_call(r: Relations) -> None:
    target = r.node.attributes.get("call_target_name", "")
    if target in IDENTITY_CALLS or target.startswith(ELEMENTWISE_CALLS):
        for value in r.node.operands:
            for result in r.node.results:
                if r.shape(value) == r.shape(result):
                    r.link_all(value, result)
    elif target.endswith("topk"):
        RULES["top_k"](r)
    elif target.startswith(MATRIX_CALLS):
        _leading(r)
    else:
        unknown(r)


def _leading(r: Relations) -> None:
    """All but the last two dims of the first operand go through, wherever another tensor begins with them."""
    first = r.node.operands[0]
    leading = max(0, len(r.shape(first)) - 2)
    for value in (*r.node.operands, *r.node.results):
        batched = leading and r.shape(value)[:leading] == r.shape(first)[:leading]
        for dim in range(len(r.shape(value))):
            if batched and dim < leading:
                r.link((first, dim), (value, dim))
            else:
                r.keep_whole((value, dim))


def unknown(r: Relations) -> None:
    """Nothing is known: the operation runs on whole tensors."""
    r.keep_all_whole()
    r.unknown = True
