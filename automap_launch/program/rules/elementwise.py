"""Rules of operations that keep, copy or rearrange dims: elementwise, broadcast, transpose, reshape, slices, pads."""

from __future__ import annotations

from automap_launch.program.rules.relations import Dim, Relations, rule

_ELEMENTWISE = """abs acos acosh add and asin asinh atan atan2 atanh bessel_i1e bitcast_convert cbrt ceil clamp compare
    complex
    conj constant_like convert cosh cosine count_leading_zeros digamma divide erf erf_inv erfc exponential
    exponential_minus_one floor imag is_finite is_inf is_neg_inf is_pos_inf lgamma log log_plus_one logistic map
    maximum minimum mulhi multiply negate next_after not or polygamma popcnt power real reduce_precision remainder
    round_nearest_afz round_nearest_even rsqrt select shift_left shift_right_arithmetic shift_right_logical sign sine
    sinh sqrt square subtract tan tanh xor zeta
    broadcast_add broadcast_and broadcast_atan2 broadcast_compare broadcast_complex broadcast_divide
    broadcast_maximum broadcast_minimum broadcast_multiply broadcast_next_after broadcast_or broadcast_polygamma
    broadcast_power broadcast_remainder broadcast_select broadcast_shift_left broadcast_shift_right_arithmetic
    broadcast_shift_right_logical broadcast_subtract broadcast_xor broadcast_zeta"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
IDENTITY = frozenset(("optimization_barrier", "loop_carry", "branch", "sharding_constraint"))
FACTORY = frozenset(("constant", "iota", "rng", "create_token", "after_all", "partition_id", "replica_id"))


@rule(*ELEMENTWISE, *IDENTITY)
def elementwise(r: Relations) -> None:
    """Dims align from the last; scalars (a predicate, a bound) have none."""
    result = r.node.results[0]
    rank = len(r.shape(result))
    for value in r.node.operands:
        shift = rank - len(r.shape(value))
        for dim in range(len(r.shape(value))):
            if dim + shift >= 0:
                r.link((value, dim), (result, dim + shift))
    if r.node.name == "bitcast_convert":
        # Between widths a minor dim appears or goes: dims align from the first.
        r.links.clear()
        for dim in range(min(rank, len(r.shape(r.node.operands[0])))):
            r.link((r.node.operands[0], dim), (result, dim))


@rule(*FACTORY)
def factory(r: Relations) -> None:
    """Made on each device in any sharding: nothing to say."""


@rule("rng_bit_generator")
def rng_bit_generator(r: Relations) -> None:
    """The state is a few words, the bits are made in any sharding."""
    for state in (*r.node.operands, r.node.results[0]):
        r.fixed.extend((state, dim) for dim in range(len(r.shape(state))))


@rule("broadcast_in_dim")
def broadcast_in_dim(r: Relations) -> None:
    operand, result = r.node.operands[0], r.node.results[0]
    for dim, target in enumerate(r.node.attributes["broadcast_dimensions"]):
        r.link((operand, dim), (result, target))


@rule("transpose")
def transpose(r: Relations) -> None:
    operand, result = r.node.operands[0], r.node.results[0]
    for target, dim in enumerate(r.node.attributes["permutation"]):
        r.link((operand, dim), (result, target))


@rule("reverse")
def reverse(r: Relations) -> None:
    operand, result = r.node.operands[0], r.node.results[0]
    turned = tuple(r.node.attributes["dimensions"])
    r.link_all(operand, result, skip=turned)
    for dim in turned:
        r.keep_whole((operand, dim), (result, dim))


@rule("reshape")
def reshape(r: Relations) -> None:
    """Each smallest run of dims of equal product is one dim, a split, a merge (`Relations.splits`) or a regrouping,
    in which the major dims carry the sharding as far as it divides both."""
    operand, result = r.node.operands[0], r.node.results[0]
    for sources, targets in runs(r.shape(operand), r.shape(result)):
        left: tuple[Dim, ...] = tuple((operand, d) for d in sources)
        right: tuple[Dim, ...] = tuple((result, d) for d in targets)
        if len(left) == len(right) == 1:
            r.link(left[0], right[0])
        elif len(left) == 1:
            r.splits.append((left[0], right))
        elif len(right) == 1:
            r.splits.append((right[0], left))
        else:
            sizes = r.shape(operand)[sources[0]], r.shape(result)[targets[0]]
            if max(sizes) % min(sizes) == 0:
                r.links.append((left[0], right[0]))
                left, right = left[1:], right[1:]
            r.keep_whole(*left, *right)


def runs(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of dims of equal product, dims of size 1 left out: (8, 1, 6) -> (2, 4, 6) gives
    [([0], [0, 1]), ([2], [2])]."""
    left = [d for d in range(len(source)) if source[d] != 1]
    right = [d for d in range(len(target)) if target[d] != 1]
    out = []
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = [left[i]], [right[j]]
        size_a, size_b = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while size_a != size_b:
            if size_a < size_b:
                a.append(left[i])
                size_a *= source[left[i]]
                i += 1
            else:
                b.append(right[j])
                size_b *= target[right[j]]
                j += 1
        out.append((a, b))
    return out


@rule("slice")
def slice_(r: Relations) -> None:
    """XLA makes one operation of a sort with positions of which the front is taken, and runs it on whole operands."""
    _same_size_or_whole(r)
    operand = r.node.operands[0]
    sort = r.producers.get(operand)
    if sort is not None and sort.name == "sort" and len(sort.operands) == 2 and operand == sort.results[0]:
        r.keep_whole(*((operand, dim) for dim in range(len(r.shape(operand)))))


@rule("pad")
def pad(r: Relations) -> None:
    _same_size_or_whole(r)


def _same_size_or_whole(r: Relations) -> None:
    operand, result = r.node.operands[0], r.node.results[0]
    for dim, (before, after) in enumerate(zip(r.shape(operand), r.shape(result), strict=True)):
        if before == after and not _shifted(r, dim):
            r.link((operand, dim), (result, dim))
        else:
            r.keep_whole((operand, dim), (result, dim))
            r.cut.append((operand, dim) if before >= after else (result, dim))


def _shifted(r: Relations, dim: int) -> bool:
    """A pad that cuts at one end what it adds at the other keeps the size and moves the elements."""
    return bool(r.node.name == "pad" and r.node.attributes["edge_padding_low"][dim] != 0)


@rule("concatenate")
def concatenate(r: Relations) -> None:
    result, along = r.node.results[0], r.node.attributes["dimension"]
    for value in r.node.operands:
        r.link_all(value, result, skip=(along,))
        r.keep_whole((value, along))
    r.keep_whole((result, along))
