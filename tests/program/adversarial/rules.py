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
    return lax.conv_general_dilated(hidden(p, x).T[:, None], jnp.ones((1, 1, 3)), (1,), "SAME")


@metric_case("mixing")
def frequencies_over_the_batch(p, x, y):
    return jnp.abs(jnp.fft.fft(hidden(p, x), axis=0))


@metric_case()
def decomposed_over_the_batch(p, x, y):
    return jnp.linalg.qr(hidden(p, x))[1]


@metric_case()
def sums_that_begin_with_a_statistic(p, x, y):
    h = hidden(p, x)
    return lax.reduce(h, h.mean(), lambda a, b: a + b, (1,))


# Rows that are kept, moved, joined


@metric_case()
def added_to_its_transpose(p, x, y):
    h = hidden(p, x)[:, :B]
    return h + h.T


@metric_case()
def taken_apart_by_a_reshape(p, x, y):
    return hidden(p, x).T.reshape(16, 5)


@metric_case()
def shifted_by_padding(p, x, y):
    return jnp.pad(hidden(p, x), ((1, 0), (0, 0)))


@metric_case()
def joined_with_a_few_more_rows(p, x, y):
    return jnp.concatenate([hidden(p, x), jnp.ones((3, H))])


@metric_case()
def bytes_of_each_number(p, x, y):
    return lax.bitcast_convert_type(jnp.sign(hidden(p, x)), jnp.uint8)


@metric_case()
def bits_of_all_examples_in_one_number(p, x, y):
    return lax.bitcast_convert_type((hidden(p, x) > 0).T.astype(jnp.uint4), jnp.uint32)


# Positions


@metric_case()
def the_first_examples_replaced(p, x, y):
    return lax.dynamic_update_slice(hidden(p, x), jnp.zeros((2, H)), (0, 0))


@metric_case()
def some_examples_replaced(p, x, y):
    return hidden(p, x).at[np.array([2, 5])].set(0.0)


@loss_case()
def positions_within_each_example(p, x, y):
    return jnp.mean(jnp.take_along_axis(hidden(p, x), COLUMNS, 1) ** 2)


@metric_case()
def one_position_made_of_all_examples(p, x, y):
    table = jnp.arange(2.0**B).reshape(CORNERS)
    return lax.gather(table, (y % 2)[None], AT_ONE, (1,) * B)


@metric_case()
def one_place_made_of_all_examples(p, x, y):
    return lax.scatter_add(jnp.zeros(CORNERS), (y % 2)[None], jnp.ones(1), INTO_ONE)


@loss_case()
def positions_counted_by_a_table(p, x, y):
    rows = jnp.stack([np.arange(B, dtype="int32"), y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@loss_case()
def positions_counted_in_another_type(p, x, y):
    rows = jnp.stack([jnp.arange(B, dtype=jnp.int16).astype(jnp.int32), y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@loss_case()
def positions_counted_and_reshaped(p, x, y):
    counted = lax.iota(jnp.int32, B).reshape(1, B, 1).reshape(B, 1)
    return jnp.mean(lax.gather(logits(p, x), lax.concatenate([counted, y[:, None]], 1), PICK, (1, 1)) ** 2)


@loss_case("mixing")
def positions_that_only_begin_as_a_count(p, x, y):
    rows = jnp.stack([(jnp.arange(B) + 1) % B, y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@loss_case("mixing")
def positions_counted_and_scaled(p, x, y):
    rows = jnp.stack([lax.iota(jnp.int32, B) * jnp.int32(1), y], 1)
    return jnp.mean(lax.gather(logits(p, x), rows, PICK, (1, 1)) ** 2)


@case("mixing", state=(np.arange(B, dtype="int32"),))
def positions_that_are_state(p, places, x, y):
    def loss(p):
        return jnp.mean(lax.gather(logits(p, x), jnp.stack([places, y], 1), PICK, (1, 1)) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), places[::-1], value


# Sums and extrema over the batch that go on


@case(state=(np.int32(2),))
def a_row_of_the_gradient(p, place, x, y):
    g = gradient(p, x, y)
    return sgd(p, g), place + 1, jnp.abs(lax.dynamic_index_in_dim(g["w1"], place))


@case(state=(np.array([4, 1, 0, 5, 2, 3], dtype="int32"),))
def rows_of_the_gradient_put_elsewhere(p, places, x, y):
    g = gradient(p, x, y)
    return sgd(p, g), places[::-1], jnp.abs(jnp.zeros((D, H)).at[places].add(g["w1"]))


@metric_case()
def the_largest_rounded(p, x, y):
    return hidden(p, x).max(0).astype(jnp.bfloat16)


@metric_case()
def the_largest_or_a_bound(p, x, y):
    return jnp.where(p["b1"] > 0, hidden(p, x).max(0), 0.5)


@case(state=(np.int32(2),))
def one_of_the_largest(p, place, x, y):
    largest = hidden(p, x).max(0)
    return sgd(p, gradient(p, x, y)), place + 1, lax.dynamic_index_in_dim(largest, place)


@metric_case()
def the_largest_in_part(p, x, y):
    return lax.dynamic_update_slice(hidden(p, x).max(0), jnp.full(2, 0.25), (3,))


@metric_case()
def a_statistic_added_by_position(p, x, y):
    h = hidden(p, x)
    return jnp.zeros((C, H)).at[y].add(jnp.broadcast_to(h.sum(0), (B, H)))
