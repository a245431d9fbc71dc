"""Which tensors cross a device's memory once the compiler has fused what can be fused.

A fusable operation (elementwise, data movement) lives inside its neighbours: the tensors between the operations of a
chain are never written. A chain writes what others need of it, and reads each of its inputs once.
"""

from __future__ import annotations

from dataclasses import dataclass

from automap_launch.program.program import Program

# Operations that take what a chain hands them without its being written first.
_INLINE_CONSUMERS = frozenset({"reduce"})
# Operations whose result a compiler makes anew wherever it is needed.
_FREE = frozenset({"constant", "iota"})
# Operations that touch only the part of operand 0 that they return or replace.
_PARTIAL_READS = frozenset({"gather", "dynamic_slice", "slice", "dynamic_update_slice", "scatter"})


@dataclass(frozen=True)
class Traffic:
    """For each operation, whether each operand is read from memory and each result written to it.

    `chain`: for each operation, the number of the fused chain that it is part of.
    `materialised`: for each value, whether it exists in memory at all.
    """

    reads: tuple[tuple[bool, ...], ...]
    writes: tuple[tuple[bool, ...], ...]
    chain: tuple[int, ...]
    materialised: tuple[bool, ...]


def memory_traffic(program: Program) -> Traffic:
    """Finds the chains of a program and what crosses their boundaries."""
    ops = program.ops
    users: list[list[int]] = [[] for _ in program.values]
    for i, op in enumerate(ops):
        for value in dict.fromkeys(op.operands):
            users[value].append(i)
    chain = list(range(len(ops)))

    def find(i: int) -> int:
        while chain[i] != i:
            chain[i] = chain[chain[i]]
            i = chain[i]
        return i

    kept = set(program.results)
    materialised = [True] * len(program.values)
    for i, op in enumerate(ops):
        for value in op.results:
            alike = [op.fusable and _alike(program, i, j) for j in users[value]]
            for j, same in zip(users[value], alike, strict=True):
                if same and ops[j].fusable:
                    chain[find(j)] = find(i)
            if op.name in _FREE or (value not in kept and all(alike)):
                materialised[value] = False
    chain = [find(i) for i in range(len(ops))]
    seen: set[tuple[int, int]] = set()
    reads = []
    for i, op in enumerate(ops):
        flags = []
        for position, value in enumerate(op.operands):
            first = (chain[i], value) not in seen
            seen.add((chain[i], value))
            flags.append(first and materialised[value] and not (position == 0 and op.name in _PARTIAL_READS))
        reads.append(tuple(flags))
    writes = tuple(tuple(materialised[value] for value in op.results) for op in ops)
    return Traffic(tuple(reads), writes, tuple(chain), tuple(materialised))


def _alike(program: Program, producer: int, consumer: int) -> bool:
    """Whether a consumer can take a fusable producer's result without its being written."""
    a, b = program.ops[producer], program.ops[consumer]
    return a.part in (b.part, "constant") and a.times == b.times and (b.fusable or b.name in _INLINE_CONSUMERS)
