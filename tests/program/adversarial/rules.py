"""For each end of a batch rule that no realistic step above comes to, the smallest step that does.

A rule left out, or one that says more than is so, would make one of these inexact, or exact where it must be refused.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import B, C, D, H, case, hidden, loss_case, metric_case, nll, sgd

COLUMNS = np.arange(B, dtype="int32")[:, None] % H  # for each example a position within its row
PICK = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))
CORNERS = (2,) * B  # a table that the positions of all examples together address
AT_ONE = lax.GatherDimensionNumbers((), tuple(range(B)), tuple(range(B)))
INTO_ONE = lax.ScatterDimensionNumbers((), tuple(range(B)), tuple(range(B)))


def logits(p, x):
    return jax.nn.log_softmax(hidden(p, x) @ p["w2"])


def gradient(p, x, y):
    return jax.grad(lambda p: nll(p, x, y).mean())(p)


# Sums, windows, linear algebra


@metric_case("mixing")
def convolved_along_the_batch(p, x, y):
    """Convolution along the batch."""
    return lax.conv_general_dilated(hidden(p, x).T[:, None], jnp.ones((1, 1, 3)), (1,), "SAME")


@metric_case("mixing")
def frequencies_over_the_batch(p, x, y):
    """Fourier transform along the batch."""
    return jnp.abs(jnp.fft.fft(hidden(p, x), axis=0))


@metric_case()
def decomposed_over_the_batch(p, x, y):
    """QR decomposition of the whole batch, as a metric."""
    return jnp.linalg.qr(hidden(p, x))[1]


@metric_case()
def sums_that_begin_with_a_statistic(p, x, y):
    """Sums that begin with a mean over the batch."""
    h = hidden(p, x)
    return lax.reduce(h, h.mean(), lambda a, b: a + b, (1,))


# Rows that are kept, moved, joined


@metric_case()
def added_to_its_transpose(p, x, y):
    """A batch at dim 0 plus one at dim 1."""
    h = hidden(p, x)[:, :B]
    return h + h.T


@metric_case()
def taken_apart_by_a_reshape(p, x, y):
    """A reshape that does not keep examples together."""
    return hidden(p, x).T.reshape(16, 5)


@metric_case()
def shifted_by_padding(p, x, y):
    """Padding before the first example."""
    return jnp.pad(hidden(p, x), ((1, 0), (0, 0)))


@metric_case()
def joined_with_a_few_more_rows(p, x, y):
    """Rows that are no examples after the last one."""
    return jnp.concatenate([hidden(p, x), jnp.ones((3, H))])


@metric_case()
def bytes_of_each_number(p, x, y):
    """bitcast that adds a dim."""
    return lax.bitcast_convert_type(jnp.sign(hidden(p, x)), jnp.uint8)


@metric_case()
def bits_of_all_examples_in_one_number(p, x, y):
    """bitcast that makes one number of all examples."""
    return lax.bitcast_convert_type((hidden(p, x) > 0).T.astype(jnp.uint4), jnp.uint32)


# Positions


@metric_case()
def the_first_examples_replaced(p, x, y):
    """dynamic_update_slice into the batch."""
    return lax.dynamic_update_slice(hidden(p, x), jnp.zeros((2, H)), (0, 0))


@metric_case()
def some_examples_replaced(p, x, y):
    """Scatter to fixed examples."""
    return hidden(p, x).at[np.array([2, 5])].set(0.0)


@loss_case()
def positions_within_each_example(p, x, y):
    """Gather within each example at places from a table."""
    return jnp.mean(jnp.take_along_axis(hidden(p, x), COLUMNS, 1) ** 2)


@metric_case()
def one_position_made_of_all_examples(p, x, y):
    """All examples together are one index of a gather."""
    table = jnp.arange(2.0**B).reshape(CORNERS)
    return lax.gather(table, (y % 2)[None], AT_ONE, (1,) * B)


@metric_case()
def one_place_made_of_all_examples(p, x, y):
    """All examples together are one index of a scatter."""
    return lax.scatter_add(jnp.zeros(CORNERS), (y % 2)[None], jnp.ones(1), INTO_ONE)


@loss_case()
def positions_counted_by_a_table(p, x, y):
    """Positions of the batch as a constant, joined with labels."""
    rows = jnp.stack([np.arange(B, dtype="int32"), y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@loss_case()
def positions_counted_in_another_type(p, x, y):
    """Positions counted in int16."""
    rows = jnp.stack([jnp.arange(B, dtype=jnp.int16).astype(jnp.int32), y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@loss_case()
def positions_counted_and_reshaped(p, x, y):
    """Positions counted, then reshaped twice."""
    counted = lax.iota(jnp.int32, B).reshape(1, B, 1).reshape(B, 1)
    return jnp.mean(lax.gather(logits(p, x), lax.concatenate([counted, y[:, None]], 1), PICK, (1, 1)) ** 2)


@loss_case("mixing")
def positions_that_only_begin_as_a_count(p, x, y):
    """Counted positions, moved by one."""
    rows = jnp.stack([(jnp.arange(B) + 1) % B, y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@loss_case("mixing")
def positions_counted_and_scaled(p, x, y):
    """Counted positions, multiplied."""
    rows = jnp.stack([lax.iota(jnp.int32, B) * jnp.int32(1), y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@case("mixing", state=(np.arange(B, dtype="int32"),))
def positions_that_are_state(p, places, x, y):
    """Positions that the state holds."""

    def loss(p):
        return jnp.mean(lax.gather(logits(p, x), jnp.stack([places, y], 1), PICK, (1, 1)) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), places[::-1], value


# Sums and extrema over the batch that go on


@case(state=(np.int32(2),))
def a_row_of_the_gradient(p, place, x, y):
    """A row of the summed gradient at a place that the state holds."""
    g = gradient(p, x, y)
    return sgd(p, g), place + 1, jnp.abs(lax.dynamic_index_in_dim(g["w1"], place))


@case(state=(np.array([4, 1, 0, 5, 2, 3], dtype="int32"),))
def rows_of_the_gradient_put_elsewhere(p, places, x, y):
    """Scatter of the summed gradient's rows."""
    g = gradient(p, x, y)
    return sgd(p, g), places[::-1], jnp.abs(jnp.zeros((D, H)).at[places].add(g["w1"]))


@metric_case()
def the_largest_rounded(p, x, y):
    """A maximum over the batch in bfloat16."""
    return hidden(p, x).max(0).astype(jnp.bfloat16)


@metric_case()
def the_largest_or_a_bound(p, x, y):
    """A choice between a maximum over the batch and a constant."""
    return jnp.where(p["b1"] > 0, hidden(p, x).max(0), 0.5)


@case(state=(np.int32(2),))
def one_of_the_largest(p, place, x, y):
    """One element of a maximum over the batch."""
    largest = hidden(p, x).max(0)
    return sgd(p, gradient(p, x, y)), place + 1, lax.dynamic_index_in_dim(largest, place)


@metric_case()
def the_largest_in_part(p, x, y):
    """A maximum over the batch, overwritten in part."""
    return lax.dynamic_update_slice(hidden(p, x).max(0), jnp.full(2, 0.25), (3,))


@metric_case()
def a_statistic_added_by_position(p, x, y):
    """Every example scatters a sum over the batch."""
    h = hidden(p, x)
    return jnp.zeros((C, H)).at[y].add(jnp.broadcast_to(h.sum(0), (B, H)))
