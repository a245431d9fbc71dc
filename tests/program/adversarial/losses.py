"""Losses: means, sums and what is neither."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program.adversarial.case import MASK, B, C, H, X, Y, case, hidden, loss_case, nll, sgd


@loss_case()
def mean_of_losses(p, x, y):
    """1 / batch size is a constant of the program."""
    return nll(p, x, y).mean()


@loss_case()
def sum_of_losses(p, x, y):
    """No division by the batch size."""
    return nll(p, x, y).sum()


@loss_case()
def weighted_sum_and_decay(p, x, y):
    """A term that does not depend on the batch counts once, not once a micro-batch."""
    return 3 * nll(p, x, y).mean() + 0.01 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p))


@loss_case(batch=(X, Y, MASK))
def masked_mean(p, x, y, mask):
    """Masked mean: divided by a count over the batch, of the data alone."""
    return (nll(p, x, y) * mask).sum() / mask.sum()


@loss_case(batch=(X, Y, MASK))
def masked_mean_never_empty(p, x, y, mask):
    """The same count, at least one."""
    return (nll(p, x, y) * mask).sum() / jnp.maximum(mask.sum(), 1.0)


@loss_case("statistic")
def mean_over_what_the_model_accepts(p, x, y):
    """Divided by a count of what the model makes."""
    loss = nll(p, x, y)
    mask = lax.stop_gradient((loss > 1.0).astype(jnp.float32))
    return (loss * mask).sum() / mask.sum()


@loss_case()
def weighted_by_position(p, x, y):
    """Weighted by an example's position in the batch."""
    return jnp.sum(nll(p, x, y) * (1.0 + jnp.arange(B)) / B)


@loss_case()
def weighted_by_a_table(p, x, y):
    """The same weights as a constant of the program."""
    return jnp.sum(nll(p, x, y) * np.linspace(0, 1, B).astype("f"))


@loss_case()
def weighted_by_labels(p, x, y):
    """Weights looked up by label."""
    return jnp.mean(nll(p, x, y) * jnp.array([1.0, 2.0, 5.0])[y])


@loss_case()
def balanced_by_counts_of_labels(p, x, y):
    """Weights from counts of the whole batch's labels."""
    counts = jnp.zeros(C).at[y].add(1.0)
    return jnp.mean(nll(p, x, y) / counts[y])


@loss_case("statistic")
def log_mean_exp(p, x, y):
    """A loss that is no mean: log of a mean."""
    return jnp.log(jnp.mean(jnp.exp(nll(p, x, y))))


@loss_case("statistic")
def worst_example(p, x, y):
    """A loss that is no mean: the maximum."""
    return jnp.max(nll(p, x, y))


@loss_case("statistic")
def root_of_the_mean(p, x, y):
    """A loss that is no mean: root of a mean."""
    return jnp.sqrt(jnp.mean(nll(p, x, y) ** 2))


@loss_case("mixing")
def hardest_examples(p, x, y):
    """top-k over the batch."""
    return jnp.mean(lax.top_k(nll(p, x, y), 3)[0])


@loss_case("mixing")
def trimmed_mean(p, x, y):
    """sort over the batch, without its ends."""
    return jnp.mean(jnp.sort(nll(p, x, y))[1:-1])


@loss_case("mixing")
def contrast_of_all_pairs(p, x, y):
    """Contrastive loss: every example against every other."""
    h = hidden(p, x)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ h.T)))


@loss_case("mixing")
def neighbours_in_the_batch(p, x, y):
    """Differences of neighbouring examples."""
    h = hidden(p, x)
    return jnp.mean((h[1:] - h[:-1]) ** 2)


@loss_case()
def every_other_example(p, x, y):
    """A strided slice of the batch."""
    return jnp.mean(nll(p, x, y)[::2])


@loss_case("mixing")
def rolled_hidden(p, x, y):
    """roll over the batch of what the model makes."""
    h = hidden(p, x)
    return jnp.mean(h * jnp.roll(h, 1, 0))


@loss_case("mixing")
def reversed_hidden(p, x, y):
    """Reversal of what the model makes."""
    h = hidden(p, x)
    return jnp.mean(h * h[::-1])


@loss_case("mixing")
def permuted_hidden(p, x, y):
    """A fixed permutation of what the model makes."""
    h = hidden(p, x)
    return jnp.mean(h * h[np.random.RandomState(2).permutation(B)])


@loss_case("mixing")
def running_sum_of_hidden(p, x, y):
    """cumsum over the batch of what the model makes."""
    return jnp.mean(jnp.cumsum(hidden(p, x), 0) ** 2)


@loss_case("statistic")
def softmax_over_the_batch(p, x, y):
    """softmax along the batch."""
    return jnp.mean(jax.nn.softmax(hidden(p, x) @ p["w2"], axis=0) ** 2)


@loss_case("statistic")
def decorrelation(p, x, y):
    """A square of a sum over the batch."""
    h = hidden(p, x)
    return jnp.sum((h.T @ h / B - jnp.eye(H)) ** 2)


@loss_case("statistic")
def batch_norm(p, x, y):
    """Batch normalisation."""
    h = x @ p["w1"]
    h = (h - h.mean(0)) * lax.rsqrt(h.var(0) + 1e-3)
    return jnp.mean(jnp.tanh(h) @ p["w2"])


@loss_case("statistic")
def batch_norm_by_fast_variance(p, x, y):
    """Batch normalisation with the variance from the mean of squares."""
    h = x @ p["w1"]
    mean = h.mean(0)
    h = (h - mean) * lax.rsqrt((h * h).mean(0) - mean * mean + 1e-3)
    return jnp.mean(jnp.tanh(h) @ p["w2"])


@case("statistic", state=(np.ones(H, "f"),))
def batch_norm_by_one_product(p, moving, x, y):
    """Batch normalisation as Keras has it, with a moving variance: the scale's gradient is made of products of sums."""

    def loss(p):
        h = x @ p["w1"]
        mean = h.mean(0)
        variance = (h * h).mean(0) - mean * mean
        scale = p["b1"] * lax.rsqrt(variance + 1e-3)
        return jnp.mean((jnp.tanh(h * scale - mean * scale) @ p["w2"]) ** 2), variance

    (value, variance), g = jax.value_and_grad(loss, has_aux=True)(p)
    return sgd(p, g), 0.9 * moving + 0.1 * variance, value


@loss_case("statistic")
def load_balance_of_experts(p, x, y):
    """A product of two means over the batch."""
    gates = jax.nn.softmax(hidden(p, x) @ p["w2"])
    share = jnp.mean(jax.nn.one_hot(gates.argmax(-1), C), 0)
    return nll(p, x, y).mean() + C * jnp.sum(share * gates.mean(0))


@loss_case("mixing")
def capacity_of_experts(p, x, y):
    """Examples beyond an expert's capacity are dropped, in the batch's order."""
    gates = jax.nn.softmax(hidden(p, x) @ p["w2"])
    chosen = jax.nn.one_hot(gates.argmax(-1), C)
    kept = jnp.cumsum(chosen, 0) <= 3
    return jnp.mean(nll(p, x, y) * (chosen * kept).sum(-1))


@loss_case("statistic")
def scaled_by_its_own_mean(p, x, y):
    """Weights that the mean loss scales, without a gradient."""
    loss = nll(p, x, y)
    return jnp.mean(loss * lax.stop_gradient(loss / loss.mean()))


@loss_case("mixing")
def best_example_alone(p, x, y):
    """The loss of the one example that argmax finds."""
    h = hidden(p, x)
    return jnp.mean(h[jnp.argmax(h[:, 0])] ** 2)


@loss_case()
def group_sums(p, x, y):
    """Segment sums."""
    return jnp.sum(jax.ops.segment_sum(nll(p, x, y), y, C) * jnp.array([1.0, 0.5, 2.0]))


@loss_case()
def group_means(p, x, y):
    """Segment means: sums over counts."""
    sums = jax.ops.segment_sum(nll(p, x, y), y, C)
    return jnp.mean(sums / jnp.maximum(jax.ops.segment_sum(jnp.ones(B), y, C), 1))


@loss_case("statistic")
def worst_group(p, x, y):
    """The maximum of segment sums."""
    return jnp.max(jax.ops.segment_sum(nll(p, x, y), y, C))
