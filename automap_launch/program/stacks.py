"""State that is stacked over the layers of a loop, and where a pipeline keeps it.

A scan over layers has each parameter of all layers in one array. A script sees that array also when its layers run on
several stages, and a JAX array has equal shards: so it is cut into equal chunks, each on a stage of its own. Where the
stages have as many layers each, every layer's state lies where the layer runs. Where they have not, some layers are
*lent*: the stage that holds the chunk sends them, once a step, to the stage that runs them, and gets their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.program.program import Program

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stack:
    """State with one leading dim, over the layers of one loop.

    Attributes:
      parameters, optimizer: argument indices. blocks: for each layer in order, the block that runs it.
    """

    parameters: tuple[int, ...]
    optimizer: tuple[int, ...]
    blocks: tuple[int, ...]


def chunk_counts(stages: Sequence[Ints]) -> list[Ints]:
    """Into how many equal chunks each stack is cut: as many as can be with each chunk beginning on a stage of its own,
    which then holds it; as many for all stacks of one length.

    With as many layers on each stage that is as many chunks as stages; six layers on four stages lie in chunks of two
    on three of them.

    Args:
      stages: for each stack int64[plans, layers], the stage that runs each layer: ascending, or descending where the
        loop begins with the last layer.

    Returns:
      For each stack int64[plans].
    """
    counts: dict[int, Ints] = {}
    for length in {own.shape[1] for own in stages}:
        alike = np.stack([own for own in stages if own.shape[1] == length])
        best = np.ones(alike.shape[1], np.int64)
        for count in (n for n in range(2, length + 1) if length % n == 0):
            first = _chunks(alike, count).min(axis=-1)
            ascending, descending = first[..., 1:] > first[..., :-1], first[..., 1:] < first[..., :-1]
            best[(ascending.all(axis=2) | descending.all(axis=2)).all(axis=0)] = count
        counts[length] = best
    return [counts[own.shape[1]] for own in stages]


def holders(stages: Ints, counts: Ints) -> Ints:
    """int64[plans, layers]: the stage that holds each layer's state: the first of those that run layers of its chunk.

    Args:
      stages, counts: of one stack, as `chunk_counts` takes and returns them.
    """
    found = np.empty_like(stages)
    for count in np.unique(counts).tolist():
        own = _chunks(stages[counts == count], count)
        found[counts == count] = np.broadcast_to(own.min(axis=-1, keepdims=True), own.shape).reshape(len(own), -1)
    return found


def _chunks(stages: Ints, count: int) -> Ints:
    """int64[..., count, layers of a chunk]. Args: stages: int64[..., layers]."""
    return stages.reshape(*stages.shape[:-1], count, -1)


def stacks_of(program: Program) -> tuple[Stack, ...]:
    """The stacks whose layers are in several blocks; one for all state whose layers are in the same."""
    parameters = set(program.parameters)
    found: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
    for index, shares in enumerate(program.homes.arguments):
        shape = program.values[program.arguments[index]].shape
        if len(shares) < 2 or not shape or program.step.arguments[index].role != "state":
            continue
        blocks = tuple(block for block, share in sorted(shares) for _ in range(round(share * shape[0])))
        if len(blocks) == shape[0]:
            found.setdefault(blocks, ([], []))[index not in parameters].append(index)
    return tuple(Stack(tuple(own), tuple(state), blocks) for blocks, (own, state) in found.items() if own)
