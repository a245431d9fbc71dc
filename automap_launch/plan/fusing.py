"""How often XLA's CPU backend does the work of an operation: once for each fused loop that it is part of.

What costs little is computed in every fused loop that reads it (`xla/service/instruction_fusion.cc`). Where an
operation reads it that takes no others in (a matrix product, a reduction with what only it reads, the end of the step,
a round of a loop), it is written; fused loops then compute it anew if it has one tensor to read, and read it themselves
if more.
"""

from __future__ import annotations

from automap_launch.program.program import Op, Program

# Too costly to do twice: XLA's `IsExpensive`, of the operations that it fuses at all.
_EXPENSIVE_NAMES = """atan2 cbrt cosine divide erf exponential exponential_minus_one log log_plus_one logistic power
    remainder rsqrt sine sqrt tan tanh"""
_EXPENSIVE = frozenset(_EXPENSIVE_NAMES.split())
_REDUCTIONS = frozenset({"reduce"})
# Tensors made by these are made on the spot.
_NOT_READ = frozenset({"broadcast_in_dim", "iota", "constant"})


def copies_of(program: Program) -> list[int]:
    """For each operation, how many times its work is done in one run."""
    ops = program.ops
    readers: list[set[int]] = [set() for _ in program.values]
    for i, op in enumerate(ops):
        for value in op.operands:
            readers[value].add(i)
    makers = {value: op.name for op in ops for value in op.results}
    kept = set(program.results)
    reduced = [op.name in _REDUCTIONS for op in ops]  # or part of a reduction that alone reads it
    # By operation, the fused loops that it is part of, each by the operation that it ends with.
    loops: list[frozenset[int]] = [frozenset({i}) for i in range(len(ops))]
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if not op.fusable:
            continue
        own = set().union(*(readers[value] for value in op.results))
        written = not kept.isdisjoint(op.results)
        if len(own) == 1 and not written and reduced[next(iter(own))] and _together(op, ops[next(iter(own))]):
            reduced[i] = True
            continue
        takers = {k for k in own if ops[k].fusable and not reduced[k] and _together(op, ops[k])}
        written |= len(takers) < len(own)
        reached = frozenset().union(*(loops[k] for k in takers), {i} if written else ())
        costly = op.name in _EXPENSIVE and len(reached) > 1
        if takers and not costly and not (written and _tensors_read(program, op, makers) > 1):
            loops[i] = reached
    return [len(own) for own in loops]


def _together(op: Op, reader: Op) -> bool:
    return (op.times, op.loop) == (reader.times, reader.loop)


def _tensors_read(program: Program, op: Op, makers: dict[int, str]) -> int:
    """Operands with as many dims as the result."""
    rank = len(program.values[op.results[0]].shape)
    read = {value for value in op.operands if makers.get(value) not in _NOT_READ}
    return sum(len(program.values[value].shape) >= rank for value in read)
