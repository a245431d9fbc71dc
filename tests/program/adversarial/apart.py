"""Examples that only seem to meet: views, lookups, what is done within each example."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import B, C, D, H, X, Y, hidden, loss_case, nll


@loss_case()
def two_views_in_one_batch(p, x, y):
    """Two views of the batch are joined into one of twice the size, and its halves compared."""
    h = hidden(p, jnp.concatenate([x, 0.5 * x]))
    return jnp.mean((h[:B] - h[B:]) ** 2)


@loss_case(batch=(X, X[::-1].copy(), Y))
def halves_joined(p, a, b, y):
    """Two batches are joined; their halves go different ways."""
    h = jnp.concatenate([a, b], 0) @ p["w1"]
    return nll(p, h[B:] @ p["w1"].T, y).mean() + h[:B].mean()


@loss_case()
def views_interleaved(p, x, y):
    """Two views of each example stand side by side in a batch of twice the size."""
    h = hidden(p, jnp.stack([x, 2 * x], 1).reshape(2 * B, D)).reshape(B, 2, H)
    return jnp.mean(h[:, 0] * h[:, 1])


@loss_case(batch=(np.asarray(X.T), Y))
def batch_at_the_last_dim(p, x, y):
    """Examples lie along the last dim."""
    return nll(p, x.T, y).mean()


@loss_case()
def labels_looked_up_by_position(p, x, y):
    """Each example's position in the batch addresses its own row."""
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[jnp.arange(B), y])


@loss_case()
def labels_looked_up_by_a_table_of_positions(p, x, y):
    """The same positions, as a constant of the program."""
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[np.arange(B), y])


@loss_case()
def looked_up_at_another_position(p, x, y):
    """Positions depend on the data: some examples read the first one's row."""
    rows = jnp.where(y > 0, jnp.arange(B), 0)
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[rows, y])


@loss_case()
def looked_up_at_the_next_position(p, x, y):
    """Each example reads the next one's row, the last one the first's."""
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[(jnp.arange(B) + 1) % B, y])


@loss_case()
def positions_used_within_and_over_all(p, x, y):
    """Positions address the batch, and a table that is whole."""
    rows = jnp.arange(B)
    table = jnp.linspace(0, 1, B * C).reshape(B, C)
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[rows, y] * table[rows, y])


PICK = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))
TABLE = np.linspace(0, 1, B * C).reshape(B, C).astype("f")


@loss_case()
def positions_counted_within_the_batch(p, x, y):
    """A lookup by position in which nothing can lie outside."""
    rows = jnp.stack([jnp.arange(B), y], 1)
    return jnp.mean(lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1)) ** 2)


@loss_case()
def same_positions_in_a_table_and_linear(p, x, y):
    """The same positions address the batch and a constant table, in a product that is linear."""
    rows = jnp.stack([jnp.arange(B), y], 1)
    own = lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1))
    return -jnp.mean(own * lax.gather(TABLE, rows, PICK, (1, 1)))


@loss_case()
def same_positions_in_a_table(p, x, y):
    """The same, in a product that is not linear."""
    rows = jnp.stack([jnp.arange(B), y], 1)
    own = lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1))
    return jnp.mean(own**2 * lax.gather(TABLE, rows, PICK, (1, 1)))


@loss_case("mixing")
def same_positions_as_numbers(p, x, y):
    """Positions address the batch and are numbers of the loss."""
    rows = jnp.stack([jnp.arange(B), y], 1)
    own = lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1))
    return jnp.mean(own**2 * rows.sum(1))


@loss_case()
def positions_into_a_trained_table(p, x, y):
    """Positions address a table made of parameters."""
    rows = jnp.stack([jnp.arange(B), y], 1)
    return jnp.mean(hidden(p, x)[:, 0] * lax.gather(p["w1"].T @ p["w1"], rows, PICK, (1, 1)))


@loss_case()
def written_at_the_label(p, x, y):
    """Scatter: each example writes to its own row."""
    logits = hidden(p, x) @ p["w2"]
    return jnp.mean(logits.at[jnp.arange(B), y].add(-1.0) ** 2)


@loss_case()
def scores_within_each_example(p, x, y):
    """Attention, running sum, sort and reversal, all within each example."""
    h = hidden(p, x).reshape(B, 5, 2)
    scores = jax.nn.softmax(jnp.einsum("bid,bjd->bij", h, h))
    return jnp.mean(jnp.sort(jnp.cumsum(scores, 1), -1)[:, ::-1] ** 2)


@loss_case()
def solved_for_each_example(p, x, y):
    """A linear system for each example."""
    h = hidden(p, x)[:, :3]
    matrices = h[:, :, None] * h[:, None, :] + 2 * jnp.eye(3)
    return jnp.mean(jnp.linalg.solve(matrices, h[..., None]) ** 2)


@loss_case()
def factored_for_each_example(p, x, y):
    """A Cholesky factor for each example."""
    h = hidden(p, x)[:, :3]
    return jnp.mean(jnp.linalg.cholesky(h[:, :, None] * h[:, None, :] + 2 * jnp.eye(3)) ** 2)


@loss_case()
def grouped_convolution(p, x, y):
    """Depthwise convolution and maximum pooling."""
    image = jnp.tile(x[:, :, None, None], (1, 1, 5, 5)) * jnp.arange(5.0)[:, None]
    kernel = jnp.tile(p["w1"][:, :1, None, None], (1, 1, 3, 3))
    out = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", feature_group_count=D)
    pooled = lax.reduce_window(out, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.mean(jnp.tanh(pooled) ** 2)


@loss_case()
def plain_convolution(p, x, y):
    """Strided convolution and windows over each image."""
    image = jnp.tile(x[:, :, None, None], (1, 1, 5, 5)) * jnp.arange(5.0)[:, None]
    kernel = jnp.tile(p["w1"].T[:, :, None, None], (1, 1, 3, 3))
    out = jnp.tanh(lax.conv_general_dilated(image, kernel, (2, 2), "SAME"))
    return jnp.mean(lax.reduce_window(out, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "SAME") ** 2)


@loss_case("mixing")
def pooled_over_the_batch(p, x, y):
    """Maximum over pairs of examples."""
    h = hidden(p, x)
    return jnp.mean(lax.reduce_window(h, -jnp.inf, lax.max, (2, 1), (2, 1), "VALID") @ p["w2"])


@loss_case()
def frequencies_of_each_example(p, x, y):
    """Fourier transform of each example."""
    return jnp.mean(jnp.abs(jnp.fft.rfft(hidden(p, x))) ** 2)
