"""Training steps to split: small, but with what makes splitting hard (tied weights, clipping, dropout, scan, remat)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.runtime.captured_by_hand import Captured, capture

Tree = Any
BATCH, LENGTH, VOCAB, WIDTH, HEADS = 16, 8, 24, 16, 2


@dataclass(frozen=True)
class Model:
    """`step(state, batch) -> (state, metrics)`; `batch(seed)` makes numpy arrays. `gradient(state, batch)`: of the
    parameters, as the step takes it."""

    init: Callable[[], Tree]
    step: Callable[[Tree, Tree], tuple[Tree, Tree]]
    batch: Callable[[int], Tree]
    gradient: Callable[[Tree, Tree], Tree] | None = None

    def capture(self, donated: bool = False) -> Captured:
        return capture(self.step, self.init(), self.batch(0), donated=donated)

    def run(self, steps: int = 3, order: Any = None) -> dict[str, np.ndarray]:
        """The plain step: final state and metrics by path. `order`: permutes the rows of every batch."""
        state, plain, metrics = self.init(), jax.jit(self.step), []
        for seed in range(steps):
            batch = self.batch(seed)
            if order is not None:
                batch = jax.tree.map(lambda x: x[order] if x.shape[:1] == order.shape else x, batch)
            state, made = plain(state, batch)
            metrics.append(made)
        return flat_run(state, metrics)


def flat_run(state: Tree, metrics: list[Tree]) -> dict[str, np.ndarray]:
    run = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        numbers = jax.random.key_data(leaf) if key else leaf
        run[jax.tree_util.keystr(path, simple=True, separator="/")] = np.asarray(numbers).astype(np.float64)
    for number, made in enumerate(metrics):
        for path, leaf in jax.tree_util.tree_leaves_with_path(made):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            run[f"metrics/{name}/{number}"] = np.asarray(leaf).astype(np.float64)
    return run


def trained(
    loss: Callable[..., Any], params: Callable[[], Tree], optimizer: Any, batch: Any, *, dropout: bool = False
) -> Model:
    """A model from its loss `loss(params, batch, key) -> (loss, more metrics)`; the key is None without dropout."""

    def init() -> Tree:
        made = params()
        state = {"params": made, "opt": optimizer.init(made)}
        if dropout:
            state["key"] = jax.random.key(7)
        return state

    def step(state: Tree, data: Tree) -> tuple[Tree, Tree]:
        keys = jax.random.split(state["key"]) if dropout else (None, None)
        (value, more), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], data, keys[0])
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        new = {"params": optax.apply_updates(state["params"], updates), "opt": opt}
        if dropout:
            new["key"] = keys[1]
        return new, {"loss": value, "norm": optax.global_norm(grads), **more}

    def gradient(state: Tree, data: Tree) -> Tree:
        key = jax.random.split(state["key"])[0] if dropout else None
        return jax.grad(lambda p: loss(p, data, key)[0])(state["params"])

    return Model(init, step, batch, gradient)


def mlp(
    layers: int = 4,
    width: int = 32,
    *,
    inputs: int = 12,
    classes: int = 5,
    dtype: Any = jnp.float32,
    optimizer: Any = None,
) -> Model:
    """Adam by default; accuracy, an integer count, a maximum and per-example predictions among the metrics."""

    def params() -> Tree:
        sizes = [inputs, *[width] * (layers - 1), classes]
        keys = jax.random.split(jax.random.key(0), layers)
        return [
            {"w": (jax.random.normal(k, (a, b)) / np.sqrt(a)).astype(dtype), "b": jnp.full(b, 0.1, dtype)}
            for k, a, b in zip(keys, sizes, sizes[1:], strict=False)
        ]

    def loss(params: Tree, data: Tree, _: Any) -> Any:
        x = data["x"].astype(dtype)
        for i, layer in enumerate(params):
            x = x @ layer["w"] + layer["b"]
            x = x if i == layers - 1 else jnp.tanh(x)
        x = x.astype(jnp.promote_types(dtype, jnp.float32))
        right = x.argmax(-1) == data["y"]
        more = {"right": right.sum(), "accuracy": right.mean(), "largest": jnp.abs(x).max(), "guess": x.argmax(-1)}
        return optax.softmax_cross_entropy_with_integer_labels(x, data["y"]).mean(), more

    def batch(seed: int, rows: int = BATCH) -> Tree:
        rng = np.random.default_rng(seed)
        return {"x": rng.normal(size=(rows, inputs)).astype("f"), "y": rng.integers(0, classes, rows).astype("i")}

    return trained(loss, params, optimizer or optax.adam(1e-2), batch)


def scanned(layers: int, reverse: bool = False, width: int = 16) -> Model:
    """Little else than a loop over layers, from the last one on if `reverse`: quick to compile."""

    def params() -> Tree:
        w = jax.random.normal(jax.random.key(0), (layers, width, width)) / np.sqrt(width)
        return {"layers": {"w": w, "b": jnp.full((layers, width), 0.1)}, "head": jnp.eye(width)}

    def loss(params: Tree, data: Tree, _: Any) -> Any:
        def layer(x: Any, p: Tree) -> tuple[Any, None]:
            return x + jnp.tanh(x @ p["w"] + p["b"]), None

        x, _ = jax.lax.scan(layer, data, params["layers"], reverse=reverse)
        return ((x @ params["head"] - 1) ** 2).mean(), {}

    def batch(seed: int) -> Tree:
        return np.random.default_rng(seed).normal(size=(BATCH, width)).astype("f")

    return trained(loss, params, optax.adam(1e-2), batch)


def bucketed(length: int, width: int = 8) -> Model:
    """Attention over sequences of one length, and no parameter that knows the length: the longer the sequences, the
    more of the work is attention."""

    def params() -> Tree:
        keys = jax.random.split(jax.random.key(0), 6)
        return [jax.random.normal(key, (width, width)) / width for key in keys]

    def loss(params: Tree, data: Tree, _: Any) -> Any:
        x = data
        for w in params[:4]:
            x = x + jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x, x @ w)) @ x
        x = x.mean(1)
        for w in params[4:]:
            x = jnp.tanh(x @ w)
        return (x**2).mean(), {}

    def batch(seed: int) -> Tree:
        return np.random.default_rng(seed).normal(size=(BATCH, length, width)).astype("f")

    return trained(loss, params, optax.adam(1e-2), batch)


def lm(
    *,
    layers: int = 4,
    optimizer: Any = None,
    scan: bool = False,
    remat: bool = False,
    dropout: float = 0.0,
    masked: bool = False,
) -> Model:
    """Decoder with tied embeddings; the scanned one has its layers stacked."""

    def params() -> Tree:
        def layer(key: Any) -> Tree:
            ks = jax.random.split(key, 4)
            init = lambda k, *shape: jax.random.normal(k, shape) / np.sqrt(shape[0])  # noqa: E731
            return {
                "qkv": init(ks[0], WIDTH, 3, HEADS, WIDTH // HEADS),
                "out": init(ks[1], WIDTH, WIDTH),
                "up": init(ks[2], WIDTH, 2 * WIDTH),
                "down": init(ks[3], 2 * WIDTH, WIDTH),
                "scale": jnp.ones((2, WIDTH)),
            }

        keys = jax.random.split(jax.random.key(1), layers + 1)
        made = [layer(k) for k in keys[1:]]
        return {
            "embedding": jax.random.normal(keys[0], (VOCAB, WIDTH)) * 0.3,
            "position": jax.random.normal(jax.random.key(3), (LENGTH, WIDTH)) * 0.1,
            "layers": jax.tree.map(lambda *x: jnp.stack(x), *made) if scan else made,
        }

    def norm(x: Any, scale: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def block(x: Any, p: Tree, key: Any) -> Any:
        h = norm(x, p["scale"][0])
        q, k, v = (jnp.einsum("btd,dhk->bthk", h, p["qkv"][:, i]) for i in range(3))
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.sqrt(WIDTH // HEADS)
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        a = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores), v).reshape(x.shape) @ p["out"]
        if dropout:
            a = jnp.where(jax.random.bernoulli(key, 1 - dropout, a.shape), a / (1 - dropout), 0)
        x = x + a
        return x + jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]

    def loss(params: Tree, data: Tree, key: Any) -> Any:
        x = params["embedding"][data["tokens"]] + params["position"]
        run = jax.checkpoint(block) if remat else block
        if scan:
            x, _ = jax.lax.scan(lambda c, p: (run(c, p, None), None), x, params["layers"])
        else:
            for i, p in enumerate(params["layers"]):
                x = run(x, p, jax.random.fold_in(key, i) if dropout else None)
        logits = x @ params["embedding"].T
        each = optax.softmax_cross_entropy_with_integer_labels(logits, data["labels"])
        if masked:
            return (each * data["mask"]).sum() / data["mask"].sum(), {"tokens": data["mask"].sum()}
        return each.mean(), {}

    def batch(seed: int, rows: int = BATCH) -> Tree:
        rng = np.random.default_rng(seed)
        made = {
            "tokens": rng.integers(0, VOCAB, (rows, LENGTH)).astype("i"),
            "labels": rng.integers(0, VOCAB, (rows, LENGTH)).astype("i"),
        }
        if masked:
            made["mask"] = (rng.random((rows, LENGTH)) > 0.3).astype("f")
        return made

    return trained(loss, params, optimizer or optax.adam(1e-2), batch, dropout=dropout > 0)


def clipped(rate: float = 1e-2) -> Any:
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(rate))


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": mlp,
    "tied_lm": lambda: lm(optimizer=clipped(), masked=True),
    "scan_remat_lm": lambda: lm(scan=True, remat=True, optimizer=clipped()),
    "dropout_lm": lambda: lm(dropout=0.3),
}
