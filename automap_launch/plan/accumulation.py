"""Which sums over the batch a step that accumulates gradients reduces over devices: whole gradients, once a step.

Without micro-batches the compiler reduces each sum where it is made: the two halves of the gradient of a tied
embedding (of its lookup, and of the logits) apart. With micro-batches a device first adds up what belongs together.
"""

from __future__ import annotations

from collections import defaultdict

from automap_launch.program.program import Program


def shares_of_sums(program: Program) -> list[float]:
    """For each operation, the share of the bytes of its sums over the batch that is reduced over devices once they are
    accumulated: of n equal sums that are added up into one gradient, 1 / n each. 1 for every other operation."""
    shares = [1.0] * len(program.ops)
    analysis = program.batch_analysis
    if analysis is None or not analysis.accumulated:
        return shares
    makers = {value: i for i, op in enumerate(program.ops) for value in op.results}
    # A gradient and multiples of it are made of the same sums: one of them is accumulated (`split/boundary.py`).
    gradients: dict[frozenset[int], int] = {}
    for value in analysis.accumulated:
        sums, size = _sums_in(program, makers, value), _bytes_made(program, makers[value], value)
        gradients[sums] = min(gradients.get(sums, size), size)
    parts: dict[int, float] = defaultdict(float)
    for sums, size in gradients.items():
        summed = sum(_bytes_made(program, i, program.ops[i].results[0]) for i in sums)
        for i in sums:
            # A gradient that is larger than its sums (of a slice of a table) is filled up after they are reduced.
            parts[i] += min(1.0, size / summed)
    for i, share in parts.items():
        shares[i] = share
    return shares


def _bytes_made(program: Program, op: int, value: int) -> int:
    """Bytes of a result in a whole step, all rounds of a loop together."""
    return program.values[value].bytes * program.ops[op].times


def _sums_in(program: Program, makers: dict[int, int], value: int) -> frozenset[int]:
    """The operations whose sums over the batch a partial value is made of."""
    analysis = program.batch_analysis
    found: set[int] = set()
    seen, open_ = {value}, [value]
    while open_ and analysis is not None:
        made = makers.get(open_.pop())
        if made is None:
            continue
        op = program.ops[made]
        if any(program.dim_groups[op.operands[position]][dim] == program.batch for position, dim in op.contracted):
            found.add(made)
            continue
        for operand in op.operands:
            if analysis.states[operand].kind == "partial" and operand not in seen:
                seen.add(operand)
                open_.append(operand)
    return frozenset(found)
