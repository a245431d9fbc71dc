"""Small steps in which examples meet, or seem to, each with whether it may run in micro-batches.

Every step is `step(params, *batch) -> (params, metrics ...)` on 8 examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B, D, H, C = 8, 6, 10, 3
Tree = Any


@dataclass(frozen=True)
class Case:
    """A step, its state and batch, and the kind of refusal expected; None where it must be exact."""

    name: str
    step: Callable[..., Any]
    state: tuple[Tree, ...]
    batch: tuple[Tree, ...]
    refused: str | None


CASES: list[Case] = []


def params() -> Tree:
    rng = np.random.RandomState(0)
    return {
        "w1": rng.randn(D, H).astype("f"), "b1": rng.randn(H).astype("f"), "w2": rng.randn(H, C).astype("f"),
    }  # fmt: skip


def data() -> tuple[Any, Any]:
    rng = np.random.RandomState(1)
    return rng.randn(B, D).astype("f"), rng.randint(0, C, B).astype("i")


def hidden(p: Tree, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w1"] + p["b1"])


def nll(p: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    """Loss of each example."""
    return -jnp.take_along_axis(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), y[:, None], 1)[:, 0]


def sgd(p: Tree, g: Tree) -> Tree:
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)


def case(
    refused: str | None = None, state: tuple[Tree, ...] = (), batch: tuple[Tree, ...] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a step. `state`: after the parameters. `batch`: instead of `data()`."""

    def register(step: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(step.__name__, step, (params(), *state), data() if batch is None else batch, refused))
        return step

    return register


def loss_case(refused: str | None = None, batch: tuple[Tree, ...] | None = None) -> Callable[..., Any]:
    """Registers the SGD step of a loss `loss(params, *batch)`."""

    def register(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def step(p: Tree, *batch: Tree) -> Any:
            value, g = jax.value_and_grad(loss)(p, *batch)
            return sgd(p, g), value

        CASES.append(Case(loss.__name__, step, (params(),), data() if batch is None else batch, refused))
        return loss

    return register


def metric_case(refused: str | None = None) -> Callable[..., Any]:
    """Registers the SGD step of the mean loss with a metric `metric(params, x, y)`."""

    def register(metric: Callable[..., Any]) -> Callable[..., Any]:
        def step(p: Tree, x: jax.Array, y: jax.Array) -> Any:
            g = jax.grad(lambda p: nll(p, x, y).mean())(p)
            return sgd(p, g), metric(p, x, y)

        CASES.append(Case(metric.__name__, step, (params(),), data(), refused))
        return metric

    return register


X, Y = data()
MASK = (np.arange(B) % 3 > 0).astype("f")
KEY = np.array([3, 7], "uint32")

# ------------------------------------------------------------------ losses


@loss_case()
def mean_of_losses(p, x, y):
    return nll(p, x, y).mean()


@loss_case()
def sum_of_losses(p, x, y):
    return nll(p, x, y).sum()


@loss_case()
def weighted_sum_and_decay(p, x, y):
    return 3 * nll(p, x, y).mean() + 0.01 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p))


@loss_case(batch=(X, Y, MASK))
def masked_mean(p, x, y, mask):
    return (nll(p, x, y) * mask).sum() / mask.sum()


@loss_case(batch=(X, Y, MASK))
def masked_mean_never_empty(p, x, y, mask):
    return (nll(p, x, y) * mask).sum() / jnp.maximum(mask.sum(), 1.0)


@loss_case("statistic")
def mean_over_what_the_model_accepts(p, x, y):
    loss = nll(p, x, y)
    mask = lax.stop_gradient((loss > 1.0).astype(jnp.float32))
    return (loss * mask).sum() / mask.sum()


@loss_case()
def weighted_by_position(p, x, y):
    return jnp.sum(nll(p, x, y) * (1.0 + jnp.arange(B)) / B)


@loss_case()
def weighted_by_a_table(p, x, y):
    return jnp.sum(nll(p, x, y) * np.linspace(0, 1, B).astype("f"))


@loss_case()
def weighted_by_labels(p, x, y):
    return jnp.mean(nll(p, x, y) * jnp.array([1.0, 2.0, 5.0])[y])


@loss_case()
def balanced_by_counts_of_labels(p, x, y):
    counts = jnp.zeros(C).at[y].add(1.0)
    return jnp.mean(nll(p, x, y) / counts[y])


@loss_case("statistic")
def log_mean_exp(p, x, y):
    return jnp.log(jnp.mean(jnp.exp(nll(p, x, y))))


@loss_case("statistic")
def worst_example(p, x, y):
    return jnp.max(nll(p, x, y))


@loss_case("statistic")
def root_of_the_mean(p, x, y):
    return jnp.sqrt(jnp.mean(nll(p, x, y) ** 2))


@loss_case("mixing")
def hardest_examples(p, x, y):
    return jnp.mean(lax.top_k(nll(p, x, y), 3)[0])


@loss_case("mixing")
def trimmed_mean(p, x, y):
    return jnp.mean(jnp.sort(nll(p, x, y))[1:-1])


@loss_case("mixing")
def contrast_of_all_pairs(p, x, y):
    h = hidden(p, x)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ h.T)))


@loss_case("mixing")
def neighbours_in_the_batch(p, x, y):
    h = hidden(p, x)
    return jnp.mean((h[1:] - h[:-1]) ** 2)


@loss_case()
def every_other_example(p, x, y):
    return jnp.mean(nll(p, x, y)[::2])


@loss_case("mixing")
def rolled_hidden(p, x, y):
    h = hidden(p, x)
    return jnp.mean(h * jnp.roll(h, 1, 0))


@loss_case("mixing")
def reversed_hidden(p, x, y):
    h = hidden(p, x)
    return jnp.mean(h * h[::-1])


@loss_case("mixing")
def permuted_hidden(p, x, y):
    h = hidden(p, x)
    return jnp.mean(h * h[np.random.RandomState(2).permutation(B)])


@loss_case("mixing")
def running_sum_of_hidden(p, x, y):
    return jnp.mean(jnp.cumsum(hidden(p, x), 0) ** 2)


@loss_case("statistic")
def softmax_over_the_batch(p, x, y):
    return jnp.mean(jax.nn.softmax(hidden(p, x) @ p["w2"], axis=0) ** 2)


@loss_case("statistic")
def decorrelation(p, x, y):
    h = hidden(p, x)
    return jnp.sum((h.T @ h / B - jnp.eye(H)) ** 2)


@loss_case("statistic")
def batch_norm(p, x, y):
    h = x @ p["w1"]
    h = (h - h.mean(0)) * lax.rsqrt(h.var(0) + 1e-3)
    return jnp.mean(jnp.tanh(h) @ p["w2"])


@loss_case("statistic")
def batch_norm_by_fast_variance(p, x, y):
    h = x @ p["w1"]
    mean = h.mean(0)
    h = (h - mean) * lax.rsqrt((h * h).mean(0) - mean * mean + 1e-3)
    return jnp.mean(jnp.tanh(h) @ p["w2"])


@loss_case("statistic")
def load_balance_of_experts(p, x, y):
    gates = jax.nn.softmax(hidden(p, x) @ p["w2"])
    share = jnp.mean(jax.nn.one_hot(gates.argmax(-1), C), 0)
    return nll(p, x, y).mean() + C * jnp.sum(share * gates.mean(0))


@loss_case("mixing")
def capacity_of_experts(p, x, y):
    gates = jax.nn.softmax(hidden(p, x) @ p["w2"])
    chosen = jax.nn.one_hot(gates.argmax(-1), C)
    kept = jnp.cumsum(chosen, 0) <= 3
    return jnp.mean(nll(p, x, y) * (chosen * kept).sum(-1))


@loss_case("statistic")
def scaled_by_its_own_mean(p, x, y):
    loss = nll(p, x, y)
    return jnp.mean(loss * lax.stop_gradient(loss / loss.mean()))


@loss_case("mixing")
def best_example_alone(p, x, y):
    h = hidden(p, x)
    return jnp.mean(h[jnp.argmax(h[:, 0])] ** 2)


@loss_case()
def group_sums(p, x, y):
    return jnp.sum(jax.ops.segment_sum(nll(p, x, y), y, C) * jnp.array([1.0, 0.5, 2.0]))


@loss_case()
def group_means(p, x, y):
    sums = jax.ops.segment_sum(nll(p, x, y), y, C)
    return jnp.mean(sums / jnp.maximum(jax.ops.segment_sum(jnp.ones(B), y, C), 1))


@loss_case("statistic")
def worst_group(p, x, y):
    return jnp.max(jax.ops.segment_sum(nll(p, x, y), y, C))


# ------------------------------------------------------------------ inputs that meet before the model


@loss_case()
def rolled_inputs(p, x, y):
    return nll(p, 0.7 * x + 0.3 * jnp.roll(x, 1, 0), y).mean()


@loss_case()
def reversed_inputs(p, x, y):
    return nll(p, x[::-1], y[::-1]).mean()


@loss_case()
def sorted_by_label(p, x, y):
    order = jnp.argsort(y)
    return jnp.sum(nll(p, x[order], y[order]) * jnp.linspace(0, 1, B))


@loss_case()
def running_sum_of_inputs(p, x, y):
    return nll(p, jnp.cumsum(x, 0), y).mean()


@loss_case()
def standardised_inputs(p, x, y):
    return nll(p, (x - x.mean(0)) / (x.std(0) + 1e-3), y).mean()


@loss_case()
def standardised_by_fast_variance(p, x, y):
    mean = x.mean(0)
    return nll(p, (x - mean) * lax.rsqrt((x**2).mean(0) - mean**2 + 1e-3), y).mean()


@case(state=(KEY,))
def mixup(p, key, x, y):
    key, a, b = jax.random.split(key, 3)
    order, share = jax.random.permutation(a, B), jax.random.beta(b, 0.5, 0.5)

    def loss(p):
        mixed = share * x + (1 - share) * x[order]
        return jnp.mean(share * nll(p, mixed, y) + (1 - share) * nll(p, mixed, y[order]))

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), key, value


@loss_case()
def branch_by_the_inputs(p, x, y):
    return lax.cond(x.mean() > 0, lambda: nll(p, x, y), lambda: nll(p, -2 * x, y)).mean()


@loss_case("statistic")
def branch_by_the_model(p, x, y):
    h = hidden(p, x)
    h = lax.cond(h.mean() > 0, lambda h: h, lambda h: -2 * h, h)
    return jnp.mean(h @ p["w2"])


@loss_case()
def branch_for_each_example(p, x, y):
    def one(row, label):
        return lax.cond(label > 0, lambda r: jnp.tanh(r @ p["w1"]).sum(), lambda r: (r**2).sum() * p["b1"][0], row)

    return jax.vmap(one)(x, y).mean()


@loss_case("mixing")
def smallest_first_half(p, x, y):
    h = hidden(p, x)
    return jnp.mean(lax.sort(h, dimension=0)[: B // 2] @ p["w2"])


# ------------------------------------------------------------------ examples that only seem to meet


@loss_case()
def two_views_in_one_batch(p, x, y):
    h = hidden(p, jnp.concatenate([x, 0.5 * x]))
    return jnp.mean((h[:B] - h[B:]) ** 2)


@loss_case(batch=(X, X[::-1].copy(), Y))
def halves_joined(p, a, b, y):
    h = jnp.concatenate([a, b], 0) @ p["w1"]
    return nll(p, h[B:] @ p["w1"].T, y).mean() + h[:B].mean()


@loss_case()
def views_interleaved(p, x, y):
    h = hidden(p, jnp.stack([x, 2 * x], 1).reshape(2 * B, D)).reshape(B, 2, H)
    return jnp.mean(h[:, 0] * h[:, 1])


@loss_case(batch=(np.asarray(X.T), Y))
def batch_at_the_last_dim(p, x, y):
    return nll(p, x.T, y).mean()


@loss_case()
def labels_looked_up_by_position(p, x, y):
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[jnp.arange(B), y])


@loss_case()
def labels_looked_up_by_a_table_of_positions(p, x, y):
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[np.arange(B), y])


@loss_case()
def looked_up_at_another_position(p, x, y):
    rows = jnp.where(y > 0, jnp.arange(B), 0)
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[rows, y])


@loss_case()
def looked_up_at_the_next_position(p, x, y):
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[(jnp.arange(B) + 1) % B, y])


@loss_case()
def positions_used_within_and_over_all(p, x, y):
    rows = jnp.arange(B)
    table = jnp.linspace(0, 1, B * C).reshape(B, C)
    return -jnp.mean(jax.nn.log_softmax(hidden(p, x) @ p["w2"])[rows, y] * table[rows, y])


PICK = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))
TABLE = np.linspace(0, 1, B * C).reshape(B, C).astype("f")


@loss_case()
def positions_counted_within_the_batch(p, x, y):
    rows = jnp.stack([jnp.arange(B), y], 1)
    return jnp.mean(lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1)) ** 2)


@loss_case()
def same_positions_in_a_table_and_linear(p, x, y):
    rows = jnp.stack([jnp.arange(B), y], 1)
    own = lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1))
    return -jnp.mean(own * lax.gather(TABLE, rows, PICK, (1, 1)))


@loss_case()
def same_positions_in_a_table(p, x, y):
    rows = jnp.stack([jnp.arange(B), y], 1)
    own = lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1))
    return jnp.mean(own**2 * lax.gather(TABLE, rows, PICK, (1, 1)))


@loss_case("mixing")
def same_positions_as_numbers(p, x, y):
    rows = jnp.stack([jnp.arange(B), y], 1)
    own = lax.gather(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), rows, PICK, (1, 1))
    return jnp.mean(own**2 * rows.sum(1))


@loss_case()
def positions_into_a_trained_table(p, x, y):
    rows = jnp.stack([jnp.arange(B), y], 1)
    return jnp.mean(hidden(p, x)[:, 0] * lax.gather(p["w1"].T @ p["w1"], rows, PICK, (1, 1)))


@loss_case()
def written_at_the_label(p, x, y):
    logits = hidden(p, x) @ p["w2"]
    return jnp.mean(logits.at[jnp.arange(B), y].add(-1.0) ** 2)


@loss_case()
def scores_within_each_example(p, x, y):
    h = hidden(p, x).reshape(B, 5, 2)
    scores = jax.nn.softmax(jnp.einsum("bid,bjd->bij", h, h))
    return jnp.mean(jnp.sort(jnp.cumsum(scores, 1), -1)[:, ::-1] ** 2)


@loss_case()
def solved_for_each_example(p, x, y):
    h = hidden(p, x)[:, :3]
    matrices = h[:, :, None] * h[:, None, :] + 2 * jnp.eye(3)
    return jnp.mean(jnp.linalg.solve(matrices, h[..., None]) ** 2)


@loss_case()
def factored_for_each_example(p, x, y):
    h = hidden(p, x)[:, :3]
    return jnp.mean(jnp.linalg.cholesky(h[:, :, None] * h[:, None, :] + 2 * jnp.eye(3)) ** 2)


@loss_case()
def grouped_convolution(p, x, y):
    image = jnp.tile(x[:, :, None, None], (1, 1, 5, 5)) * jnp.arange(5.0)[:, None]
    kernel = jnp.tile(p["w1"][:, :1, None, None], (1, 1, 3, 3))
    out = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", feature_group_count=D)
    pooled = lax.reduce_window(out, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.mean(jnp.tanh(pooled))


@loss_case()
def plain_convolution(p, x, y):
    image = jnp.tile(x[:, :, None, None], (1, 1, 5, 5)) * jnp.arange(5.0)[:, None]
    kernel = jnp.tile(p["w1"].T[:, :, None, None], (1, 1, 3, 3))
    out = jnp.tanh(lax.conv_general_dilated(image, kernel, (2, 2), "SAME"))
    return jnp.mean(lax.reduce_window(out, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "SAME") ** 2)


@loss_case("mixing")
def pooled_over_the_batch(p, x, y):
    h = hidden(p, x)
    return jnp.mean(lax.reduce_window(h, -jnp.inf, lax.max, (2, 1), (2, 1), "VALID") @ p["w2"])


@loss_case()
def frequencies_of_each_example(p, x, y):
    return jnp.mean(jnp.abs(jnp.fft.rfft(hidden(p, x))) ** 2)


# ------------------------------------------------------------------ loops and random numbers


@loss_case(batch=(np.tile(X[:, None], (1, 4, 1)), Y))
def recurrent(p, x, y):
    def cell(h, now):
        h = jnp.tanh(now @ p["w1"] + 0.5 * h)
        return h, h.sum()

    h, sums = lax.scan(cell, jnp.zeros((B, H)), jnp.swapaxes(x, 0, 1))
    return -jnp.mean(jax.nn.log_softmax(h @ p["w2"])[:, 0]) + 1e-3 * sums.sum()


@case(state=(np.ones((B, H), "f"),))
def hidden_state_kept_between_steps(p, h, x, y):
    def loss(p):
        new = jnp.tanh(x @ p["w1"] + h)
        return jnp.mean(new @ p["w2"]), new

    (value, new), g = jax.value_and_grad(loss, has_aux=True)(p)
    return sgd(p, g), new, value


@case()
def chunks_accumulated_by_the_user(p, x, y):
    def one(total, xy):
        value, g = jax.value_and_grad(lambda p: nll(p, *xy).mean())(p)
        return jax.tree.map(jnp.add, total, g), value

    total, values = lax.scan(one, jax.tree.map(jnp.zeros_like, p), (x.reshape(2, 4, D), y.reshape(2, 4)))
    return sgd(p, jax.tree.map(lambda g: g / 2, total)), values.mean()


@case("statistic")
def several_steps_in_one(p, x, y):
    def one(p, xy):
        value, g = jax.value_and_grad(lambda p: nll(p, *xy).mean())(p)
        return sgd(p, g), value

    return lax.scan(one, p, (jnp.stack([x, 2 * x]), jnp.stack([y, y])))


@loss_case("loop")
def iterated_until_all_are_done(p, x, y):
    h = lax.stop_gradient(hidden(p, x))
    h = lax.while_loop(lambda h: jnp.max(jnp.abs(h)) > 0.1, lambda h: 0.5 * h, h)
    return jnp.mean((h + hidden(p, x)) @ p["w2"])


@loss_case()
def iterated_a_fixed_number_of_times(p, x, y):
    h = lax.fori_loop(0, 3, lambda k, h: jnp.tanh(h + k), hidden(p, x))
    return jnp.mean(h @ p["w2"])


@case(state=(KEY,))
def dropout(p, key, x, y):
    key, use = jax.random.split(key)

    def loss(p):
        h = hidden(p, x)
        return jnp.mean((h * jax.random.bernoulli(use, 0.5, h.shape)) @ p["w2"])

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), key, value


@case(state=(KEY,))
def noise_of_a_key_for_each_example(p, key, x, y):
    keys = jax.random.split(key, B)

    def loss(p):
        noise = jax.vmap(lambda k: jax.random.normal(k, (D,)))(keys)
        return nll(p, x + noise, y).mean()

    value, g = jax.value_and_grad(loss)(p)
    return sgd(p, g), keys[0], value


# ------------------------------------------------------------------ what is done with gradients


@case()
def clipped_for_each_example(p, x, y):
    g = jax.vmap(jax.grad(lambda p, x, y: nll(p, x[None], y[None])[0]), (None, 0, 0))(p, x, y)
    norm = jnp.sqrt(sum(jnp.sum(a**2, tuple(range(1, a.ndim))) for a in jax.tree.leaves(g)))
    scale = jnp.minimum(1.0, 0.5 / norm)
    return sgd(p, jax.tree.map(lambda a: jnp.einsum("b,b...->...", scale, a) / B, g)), norm.mean()


@case()
def clipped_by_the_global_norm(p, x, y):
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    norm = jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(g)))
    return sgd(p, jax.tree.map(lambda a: a * jnp.minimum(1.0, 0.5 / norm), g)), value, norm


@case()
def skipped_where_not_finite(p, x, y):
    g = jax.grad(lambda p: nll(p, x, y).mean())(p)
    fine = jnp.all(jnp.array([jnp.isfinite(a).all() for a in jax.tree.leaves(g)]))
    return lax.cond(fine, lambda: sgd(p, g), lambda: p), fine


@case("statistic")
def sharpness_aware(p, x, y):
    def loss(p):
        return nll(p, x, y).mean()

    g = jax.grad(loss)(p)
    return sgd(p, jax.grad(loss)(jax.tree.map(lambda a, b: a + 0.05 * jnp.sign(b), p, g)))


@case(state=(np.zeros((C, H), "f"),))
def bank_overwritten_by_label(p, bank, x, y):
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), bank.at[y].set(hidden(p, x)), value


@case(state=(np.full((C, H), 0.5, "f"),))
def bank_added_to_by_label(p, bank, x, y):
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), bank.at[y].add(hidden(p, x)), value


@case(state=(np.full((C,), 0.2, "f"),))
def largest_loss_of_each_label(p, largest, x, y):
    value, g = jax.value_and_grad(lambda p: nll(p, x, y).mean())(p)
    return sgd(p, g), largest.at[y].max(nll(p, x, y)), value


# ------------------------------------------------------------------ metrics


@metric_case()
def integer_counts(p, x, y):
    right = (hidden(p, x) @ p["w2"]).argmax(-1) == y
    return right.sum(), right.sum() // 2, right.sum().astype("int8"), right.any(), right.all(), (~right).any()


@metric_case()
def extremes(p, x, y):
    loss = nll(p, x, y)
    return (
        loss.max(),
        loss.min(),
        jnp.maximum(loss.max(), 0.3),
        jnp.exp(loss.max()),
        -loss.max(),
        loss.max() - loss.min(),
    )


@metric_case()
def confusion(p, x, y):
    guess = (hidden(p, x) @ p["w2"]).argmax(-1)
    return jnp.zeros((C, C), jnp.int32).at[y, guess].add(1), jax.nn.one_hot(y, C).T @ jax.nn.one_hot(guess, C)


@metric_case()
def median_and_best(p, x, y):
    loss = nll(p, x, y)
    return jnp.median(loss), lax.top_k(loss, 2), loss.argmin(), jnp.prod(loss)


@metric_case()
def variance_of_losses(p, x, y):
    loss = nll(p, x, y)
    return jnp.var(loss), jnp.std(loss), jax.nn.logsumexp(loss)


@metric_case()
def ratio_of_sums(p, x, y):
    loss = nll(p, x, y)
    return (loss * y).sum() / y.sum(), loss.sum() ** 2, 1 / loss.mean()


@metric_case()
def losses_themselves(p, x, y):
    return nll(p, x, y), hidden(p, x).T, jnp.concatenate([x, 2 * x])


@metric_case()
def bits_of_labels(p, x, y):
    return lax.reduce(y, np.int32(0), lax.bitwise_or, (0,)), lax.reduce(y > 1, np.bool_(False), lax.bitwise_or, (0,))


@metric_case()
def mean_beginning_with_one(p, x, y):
    return lax.reduce(nll(p, x, y), np.float32(1.0), lax.add, (0,))
