"""Floating-point operations of one run of an operation on whole tensors, and what a compiler fuses.

Counted as XLA counts: 2 a multiply-add of a dot or a convolution (padding and dilation holes left out), 1 an output
element of an elementwise operation, a transcendental one included, 1 an input element of a reduction; moving data is
free.
"""

from __future__ import annotations

import math
from functools import cache

from automap_launch.program.graph import Graph, Node
from automap_launch.program.rules.elementwise import ELEMENTWISE

_MOVE_NAMES = """bitcast_convert broadcast_in_dim concatenate constant constant_like convert dynamic_slice
    dynamic_update_slice
    iota optimization_barrier pad reshape reverse sharding_constraint slice transpose loop_carry branch"""
_MOVES = frozenset(_MOVE_NAMES.split())


def is_fusable(node: Node) -> bool:
    """Elementwise or data movement: a compiler computes it where its result is read."""
    return node.name in ELEMENTWISE or node.name in _MOVES


def flops_of(graph: Graph, node: Node) -> int:
    """Floating-point operations of one run."""
    if node.name in _MOVES:
        return 0
    if node.name == "dot_general":
        contract = node.attributes["dot_dimension_numbers"]["lhs_contract"]
        depth: int = math.prod(graph.shape(node.operands[0])[d] for d in contract)
        return 2 * _size(graph, node.results[0]) * depth
    if node.name == "convolution":
        return _convolution(graph, node)
    if node.name == "reduce":
        return sum(_size(graph, v) for v in node.operands[: len(node.results)])
    if node.name == "reduce_window":
        window: int = math.prod(node.attributes["window_dimensions"])
        return _size(graph, node.results[0]) * window
    if node.name in ("scatter", "select_and_scatter"):
        return _size(graph, node.operands[-1] if node.name == "scatter" else node.operands[0])
    if node.name in ELEMENTWISE or node.name in ("rng", "rng_bit_generator"):
        return _size(graph, node.results[-1])
    return 0


def _size(graph: Graph, value: int) -> int:
    return graph.values[value].size


def _convolution(graph: Graph, node: Node) -> int:
    numbers = node.attributes["dimension_numbers"]
    image, kernel, result = (graph.shape(v) for v in (*node.operands, *node.results))
    spatial = len(numbers["input_spatial"])
    ones, no_padding = (1,) * spatial, ((0, 0),) * spatial
    positions = 1
    for k in range(spatial):
        positions *= _valid(
            size=image[numbers["input_spatial"][k]],
            window=kernel[numbers["kernel_spatial"][k]],
            outputs=result[numbers["output_spatial"][k]],
            stride=node.attributes.get("window_strides", ones)[k],
            padding=node.attributes.get("padding", no_padding)[k][0],
            base=node.attributes.get("lhs_dilation", ones)[k],
            dilation=node.attributes.get("rhs_dilation", ones)[k],
        )
    batch = image[numbers["input_batch"]] // node.attributes.get("batch_group_count", 1)
    channels: int = kernel[numbers["kernel_input"]] * result[numbers["output_feature"]]
    return 2 * positions * int(batch) * channels


@cache
def _valid(*, size: int, window: int, outputs: int, stride: int, padding: int, base: int, dilation: int) -> int:
    """Pairs of (output, window position) that fall on an element of the image, along one spatial dim."""
    span = (size - 1) * base + 1
    count = 0
    for position in range(window):
        for output in range(outputs):
            at = output * stride - padding + position * dilation
            count += 0 <= at < span and at % base == 0
    return count
