"""Which operations of the backward part compute again what the forward part had (`jax.checkpoint`, remat)."""

from __future__ import annotations

from automap_launch.program.program import Program


def recomputed_in_loops(program: Program) -> frozenset[int]:
    """Operations in loops of the backward part that wait for no gradient: all they need is there after the forward
    part."""
    makers = {value: i for i, op in enumerate(program.ops) for value in op.results}
    constant = {value for value, i in makers.items() if program.ops[i].part == "constant"}
    gradients: set[int] = set()
    found = set()
    for i, op in enumerate(program.ops):
        if op.part != "backward":
            continue
        if not gradients.isdisjoint(op.operands):
            gradients.update(op.results)
        elif op.times > 1:
            found.add(i)
        elif constant.issuperset(op.operands):
            # Zeros that a loop adds to.
            constant.update(op.results)
        elif op.name != "loop_carry":
            gradients.update(op.results)
    return frozenset(found)
