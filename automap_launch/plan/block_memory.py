"""What each block of a program holds of one micro-batch: residuals, gradients of loops, and what it works with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from automap_launch.plan.liveness import Birth, Kind, Liveness
from automap_launch.program.batch_analysis import Shares
from automap_launch.program.program import Program

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BlockMemory:
    """Bytes of whole tensors by block and kind (`Liveness.kinds`).

    Attributes:
      residuals: float64[blocks, kinds], made in the block's forward part and read in the backward part.
      stacks: float64[blocks, kinds], gradients that a loop over layers stacks up: there until the last of its rounds.
      recomputed: float64[blocks, kinds], made again for the backward part: there at once, whatever the layer, in a
        step whose loops are written out.
      working: float64[blocks, moments, kinds], all else that is alive while the block runs, at the moments when most
        is, with the largest gradient that is made there; a gradient is added to the sums as soon as it is made.
    """

    residuals: Array
    stacks: Array
    recomputed: Array
    working: Array


def block_memory(program: Program, live: Liveness) -> BlockMemory:
    """Follows the tensors of a step to the blocks that its operations are in."""
    homes: tuple[Shares, ...] = program.homes.ops or (((0, 1.0),),) * len(program.ops)
    blocks = max(1, len(program.blocks))
    numbers = {kind: k for k, kind in enumerate(live.kinds)}
    residuals = np.zeros((blocks, len(live.kinds)))
    stacks, recomputed = np.zeros_like(residuals), np.zeros_like(residuals)
    largest: dict[int, Birth] = {}
    transient = []
    for birth in live.births:
        if birth.residual:
            _add(residuals, birth, homes[birth.made], numbers[birth.kind])
        elif birth.made in live.recomputed:
            rounds = replace(birth, bytes=birth.bytes * program.ops[birth.made].times)
            _add(recomputed, rounds, homes[birth.made], numbers[birth.kind])
        elif birth.gradient and program.ops[birth.made].times > 1:
            _add(stacks, birth, homes[birth.made], numbers[birth.kind])
        elif birth.gradient:
            for block, _ in homes[birth.made]:
                if block not in largest or birth.bytes > largest[block].bytes:
                    largest[block] = birth
        else:
            transient.append(birth)
    curve = _curve(transient, len(program.ops), numbers, len(live.kinds))
    batch = [k for kind, k in numbers.items() if program.batch in kind.groups]
    working = np.zeros((blocks, 3, len(live.kinds)))
    for block, moments in _moments(program, homes).items():
        own = curve[moments]
        total, with_batch = own.sum(axis=1), own[:, batch].sum(axis=1)
        for place, measure in enumerate((total, with_batch, total - with_batch)):
            working[block, place] = own[int(np.argmax(measure))]
    for block, birth in largest.items():
        working[block, :, numbers[birth.kind]] += birth.bytes
    return BlockMemory(residuals, stacks, recomputed, working)


def _add(into: Array, birth: Birth, home: Shares, kind: int) -> None:
    for block, share in home:
        into[block, kind] += share * birth.bytes


def _curve(births: Iterable[Birth], moments: int, numbers: dict[Kind, int], kinds: int) -> Array:
    """float64[moments, kinds]: bytes alive at each operation."""
    curve = np.zeros((moments + 2, kinds))
    for birth in births:
        curve[birth.at, numbers[birth.kind]] += birth.bytes
        curve[birth.dies + 1, numbers[birth.kind]] -= birth.bytes
    alive: Array = curve.cumsum(axis=0)[:moments]
    return alive


def _moments(program: Program, homes: tuple[Shares, ...]) -> dict[int, list[int]]:
    """By block, the operations of the forward and backward parts that run in it."""
    found: dict[int, list[int]] = {}
    for i, op in enumerate(program.ops):
        if op.part in ("forward", "backward"):
            for block, _ in homes[i]:
                found.setdefault(block, []).append(i)
    return found
