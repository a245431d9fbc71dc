"""Batch values cut into pieces: the batch dim read as (outer, rest), of which each piece is a part of the second."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from automap_launch.plan.sharding import DATA
from automap_launch.program.batch_analysis import State


def over_data(state: State) -> PartitionSpec:
    """Of a batch value in blocks: the examples of each block over the axis `data`."""
    return PartitionSpec(*[None] * (state.dim + 1), DATA)


def blocks_of(value: Any, state: State) -> Any:
    """The batch dim as two, (outer, rest)."""
    shape = value.shape
    return value.reshape(*shape[: state.dim], state.outer, shape[state.dim] // state.outer, *shape[state.dim + 1 :])


def piece_of(blocks: Any, state: State, number: Any, count: int) -> Any:
    """Piece `number` of `count` of a value in blocks, its batch dim one again."""
    size = blocks.shape[state.dim + 1] // count
    piece = lax.dynamic_slice_in_dim(blocks, number * size, size, state.dim + 1)
    shape = blocks.shape
    return piece.reshape(*shape[: state.dim], shape[state.dim] * size, *shape[state.dim + 2 :])


def together(stacked: Any, state: State) -> Any:
    """Pieces, stacked in front, as one value in blocks."""
    count, *shape = stacked.shape
    size = shape[state.dim] // state.outer
    split = stacked.reshape(count, *shape[: state.dim], state.outer, size, *shape[state.dim + 1 :])
    moved = jnp.moveaxis(split, 0, state.dim + 1)
    return moved.reshape(*shape[: state.dim], state.outer, count * size, *shape[state.dim + 1 :])
