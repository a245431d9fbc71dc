"""What it costs a pipeline that layers of stacked state lie on another stage than the one that runs them.

Each stage is priced as if it held the state of its own layers. Where the cuts do not divide a scan's layers evenly,
that is not so (`program/stacks.py`): what these functions say is added. It is nothing where they do.

The stage that holds a layer sends its parameters before the first micro-batch, gets its gradient after the last, and
updates it. Times are added where they are spent and taken off nowhere, so that a stage is never faster than its blocks
alone: the borrower is also counted with the update that it is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from automap_launch.program.stacks import chunk_counts, holders

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layers:
    """One stack. Bytes of one layer on one device of a stage, and seconds.

    Attributes:
      blocks: int64[layers], the block that runs each. parameters, optimizer: as they are stored.
      sent: of the parameters as they are sent, and of the gradient that comes back.
      gathered: of the copy that a stage computes with where that is not what it stores; else 0.
      gradients: of the sum that is held until the update. update: seconds of it.
    """

    blocks: Ints
    parameters: float
    optimizer: float
    sent: float
    gathered: float
    gradients: float
    update: float


@dataclass(frozen=True)
class Lending:
    """What is added to each stage; float64[plans, stages]. Seconds, and bytes on one device.

    Attributes:
      before: until borrowed layers are there. after: until their gradients are back. update: of lent layers.
      parameters, optimizer: of layers that the stage holds for others, less those that others hold for it.
      gradients: of layers that it has lent. other: copies of lent and of borrowed layers.
    """

    before: Array
    after: Array
    update: Array
    parameters: Array
    optimizer: Array
    gradients: Array
    other: Array

    @property
    def bytes(self) -> Array:
        return self.parameters + self.optimizer + self.gradients + self.other


def lending(
    stacks: Sequence[Layers], cuts: Ints, seconds: Callable[[Ints, Ints], tuple[Array, Array]]
) -> Lending | None:
    """What pipelines pay for layers that lie on other stages; None: all lie where they run.

    Args:
      cuts: int64[plans, stages - 1].
      seconds: of messages, for the stages that they are from and the later ones that they are to: in all, and for
        each byte.
    """
    plans, count = len(cuts), cuts.shape[1] + 1
    stages = [(cuts[:, None] <= stack.blocks[:, None]).sum(axis=2) for stack in stacks]
    held = [holders(own, counts) for own, counts in zip(stages, chunk_counts(stages), strict=True)]
    if all(np.array_equal(own, holder) for own, holder in zip(stages, held, strict=True)):
        return None
    added = {name: np.zeros((plans, count)) for name in Lending.__dataclass_fields__}
    sent = np.zeros((plans, count, count))  # from the lender to the borrower
    for stack, own, holder in zip(stacks, stages, held, strict=True):
        plan, layer = np.nonzero(own != holder)
        pairs = np.zeros((plans, count, count))
        np.add.at(pairs, (plan, holder[plan, layer], own[plan, layer]), 1.0)
        lent, borrowed = pairs.sum(axis=2), pairs.sum(axis=1)
        sent += stack.sent * pairs
        added["update"] += stack.update * lent
        added["parameters"] += stack.parameters * (lent - borrowed)
        added["optimizer"] += stack.optimizer * (lent - borrowed)
        added["gradients"] += stack.gradients * lent
        # A borrower is counted with gathered copies of its layers, where there are any.
        added["other"] += (stack.sent + stack.gathered) * lent + (stack.sent - stack.gathered) * borrowed
    plan, lender, borrower = np.nonzero(sent)
    alpha, beta = seconds(lender, borrower)
    for name in ("before", "after"):
        np.add.at(added[name], (plan, borrower), alpha + beta * sent[plan, lender, borrower])
    return Lending(**added)


def least_bytes(stacks: Sequence[Layers], first: Ints, end: Ints, stages: int) -> Array:
    """What lending adds at least to the bytes of runs of blocks from `first` up to `end`, whatever the other stages
    are; below 0 where others may hold what a run counts."""
    least = np.zeros(first.shape)
    for stack in stacks:
        layers = len(stack.blocks)
        start, stop = np.searchsorted(stack.blocks, first), np.searchsorted(stack.blocks, end)
        spared = stack.parameters + stack.optimizer + stack.gathered - stack.sent
        added = stack.parameters + stack.optimizer + stack.gathered + stack.sent + stack.gradients
        best = np.full(first.shape, np.inf)
        for count in (n for n in range(1, stages + 1) if layers % n == 0):
            width = layers // count
            chunk = -(-start // width) * width  # the first that begins in the run
            holds = chunk < stop
            own = np.where(holds, np.minimum(chunk + width, stop) - chunk, 0)
            lent, borrowed = np.where(holds, width - own, 0), stop - start - own
            possible = ~holds | (chunk + width >= stop)  # a stage holds one chunk
            best = np.where(possible, np.minimum(best, added * lent - spared * borrowed), best)
        least += best
    return least
