"""Where the state of layers that are stacked in one array lies."""

from __future__ import annotations

import numpy as np
import pytest

from automap_launch.program.analyse import analyse
from automap_launch.program.stacks import chunk_counts, holders, stacks_of
from tests.program import models
from tests.program.conftest import make_step


@pytest.mark.parametrize(
    ("stages", "count", "held_by"),
    [
        ([0, 0, 0, 1, 1, 1], 2, [0, 0, 0, 1, 1, 1]),
        ([0, 0, 1, 1, 2, 3], 3, [0, 0, 1, 1, 2, 2]),  # stage 3 has a layer, and no chunk begins there
        ([0, 1, 1, 2, 2, 3], 3, [0, 0, 1, 1, 2, 2]),
        ([0, 0, 1, 1, 1, 1], 2, [0, 0, 0, 1, 1, 1]),
        ([0, 0, 0, 0, 1, 1], 1, [0, 0, 0, 0, 0, 0]),  # both halves begin on stage 0
        ([0, 0, 0, 1, 1], 1, [0, 0, 0, 0, 0]),
        ([0, 0, 2, 2, 5, 5], 3, [0, 0, 2, 2, 5, 5]),
        ([1, 1, 1, 0, 0, 0], 2, [1, 1, 1, 0, 0, 0]),  # the loop begins with the last layer
        ([2, 1, 1, 0, 0, 0], 2, [1, 1, 1, 0, 0, 0]),
    ],
)
def test_chunks_lie_on_the_stages_that_their_first_layers_run_on(stages, count, held_by):
    own = np.array([stages])
    (counts,) = chunk_counts([own])
    assert counts.tolist() == [count]
    assert holders(own, counts).tolist() == [held_by]


def test_stacks_of_one_length_are_cut_alike():
    """An encoder and a decoder with four layers each: what both allow."""
    encoder, decoder, other = [[0, 0, 1, 1], [0, 1, 2, 3]], [[1, 2, 3, 4], [3, 3, 4, 4]], [[0, 1, 2], [0, 0, 1]]
    found = chunk_counts([np.array(encoder), np.array(other), np.array(decoder)])
    assert [counts.tolist() for counts in found] == [[2, 2], [3, 1], [2, 2]]


def test_the_stacks_of_a_program_are_its_scanned_parameters_with_their_optimizer_state():
    function, state, batch = models.language_model(3, scan=True)
    program = analyse(make_step(function, state, *batch))
    (stack,) = stacks_of(program)
    paths = [argument.path for argument in program.step.arguments]
    stacked = [k for k, argument in enumerate(program.step.arguments) if argument.shape[:1] == (3,)]
    assert sorted(stack.parameters + stack.optimizer) == stacked
    assert len(stack.optimizer) == 2 * len(stack.parameters), paths
    assert stack.blocks == tuple(b for b, block in enumerate(program.blocks) for _ in block.loops)


def test_a_program_without_a_loop_over_layers_has_no_stack():
    function, state, batch = models.language_model(3)
    assert stacks_of(analyse(make_step(function, state, *batch))) == ()
