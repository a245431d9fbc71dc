"""More steps to split: two stacks that meet (encoder-decoder), images, and a loop over time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.split.models import BATCH, Model, Tree, trained

WIDTH, HEADS, LENGTH, VOCAB, CLASSES = 16, 2, 6, 24, 5


def _weights(key: Any, *shape: int, fan: int | None = None) -> Any:
    return jax.random.normal(key, shape) / np.sqrt(fan or shape[0])


def encoder_decoder(optimizer: Any = None, layers: int = 2) -> Model:
    """A translation model: attention with biases (but for the keys, whose bias would have no gradient but rounding),
    layer norms before each part, the decoder reading what the encoder made; the embedding is used three times."""

    def attention(key: Any) -> Tree:
        inner = (HEADS, WIDTH // HEADS)
        made = {name: _weights(k, WIDTH, *inner) for name, k in zip("qkv", jax.random.split(key, 3), strict=True)}
        made |= {f"{name}_bias": jnp.full(inner, 0.1) for name in "qv"}
        return made | {"out": _weights(jax.random.fold_in(key, 3), *inner, WIDTH, fan=WIDTH)}

    def feed_forward(key: Any) -> Tree:
        up, down = jax.random.split(key)
        return {"up": _weights(up, WIDTH, 2 * WIDTH), "down": _weights(down, 2 * WIDTH, WIDTH)}

    def norm() -> Tree:
        return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}

    def params() -> Tree:
        encoder, decoder = [], []
        for i in range(layers):
            keys = jax.random.split(jax.random.key(10 + i), 5)
            encoder.append({"self": attention(keys[0]), "mlp": feed_forward(keys[1]), "norms": [norm(), norm()]})
            decoder.append(
                {
                    "self": attention(keys[2]),
                    "cross": attention(keys[3]),
                    "mlp": feed_forward(keys[4]),
                    "norms": [norm(), norm(), norm()],
                }
            )
        embedding = jax.random.normal(jax.random.key(9), (VOCAB, WIDTH)) * 0.3
        return {"embedding": embedding, "encoder": encoder, "decoder": decoder}

    def normed(x: Any, p: Tree) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]

    def attend(x: Any, other: Any, p: Tree, causal: bool = False) -> Any:
        q = jnp.einsum("btd,dhk->bthk", x, p["q"]) + p["q_bias"]
        k = jnp.einsum("btd,dhk->bthk", other, p["k"])
        v = jnp.einsum("btd,dhk->bthk", other, p["v"]) + p["v_bias"]
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.sqrt(WIDTH // HEADS)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        return jnp.einsum("bhqs,bshk,hkd->bqd", jax.nn.softmax(scores), v, p["out"])

    def loss(params: Tree, data: Tree, _: Any) -> Any:
        x = params["embedding"][data["source"]]
        for p in params["encoder"]:
            h = normed(x, p["norms"][0])
            x = x + attend(h, h, p["self"])
            x = x + jax.nn.gelu(normed(x, p["norms"][1]) @ p["mlp"]["up"]) @ p["mlp"]["down"]
        y = params["embedding"][data["target"][:, :-1]]
        for p in params["decoder"]:
            h = normed(y, p["norms"][0])
            y = y + attend(h, h, p["self"], causal=True)
            y = y + attend(normed(y, p["norms"][1]), x, p["cross"])
            y = y + jax.nn.gelu(normed(y, p["norms"][2]) @ p["mlp"]["up"]) @ p["mlp"]["down"]
        logits = y @ params["embedding"].T
        labels = data["target"][:, 1:]
        each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return each.mean(), {"right": (logits.argmax(-1) == labels).sum()}

    def batch(seed: int, rows: int = BATCH) -> Tree:
        rng = np.random.default_rng(seed)
        return {
            "source": rng.integers(0, VOCAB, (rows, LENGTH)).astype("i"),
            "target": rng.integers(0, VOCAB, (rows, LENGTH + 1)).astype("i"),
        }

    return trained(loss, params, optimizer or optax.adam(1e-2), batch)


def cnn(
    optimizer: Any = None, *, norm: str = "group", blocks: int = 2, channels: int = 16, inner: int = 16, groups: int = 8
) -> Model:
    """Residual blocks of two convolutions. `norm`: `group`, within each image, or `batch`, over the batch."""

    def params() -> Tree:
        keys = jax.random.split(jax.random.key(20), 2 * blocks + 2)
        return {
            "first": _weights(keys[0], 3, 3, 3, channels, fan=27),
            "blocks": [
                {
                    "in": _weights(keys[2 * i + 1], 3, 3, channels, inner, fan=9 * channels),
                    "out": _weights(keys[2 * i + 2], 3, 3, inner, channels, fan=9 * inner),
                    "scale": jnp.ones(inner),
                    "bias": jnp.zeros(inner),
                }
                for i in range(blocks)
            ],
            "last": _weights(keys[-1], channels, CLASSES),
        }

    def conv(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def normed(x: Any, p: Tree) -> Any:
        if norm == "group":
            parts = x.reshape(*x.shape[:3], groups, inner // groups)
            axes: tuple[int, ...] = (1, 2, 4)
        else:
            parts, axes = x, (0, 1, 2)
        centred = parts - parts.mean(axes, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
        return scaled.reshape(x.shape) * p["scale"] + p["bias"]

    def loss(params: Tree, data: Tree, _: Any) -> Any:
        x = conv(data["image"].astype(params["first"].dtype), params["first"])
        for i, p in enumerate(params["blocks"]):
            x = x + conv(jax.nn.relu(normed(conv(x, p["in"]), p)), p["out"])
            if i == 0:
                x = jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.mean((1, 2)) @ params["last"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, data["label"]).mean(), {}

    def batch(seed: int, rows: int = BATCH) -> Tree:
        rng = np.random.default_rng(seed)
        return {
            "image": rng.normal(size=(rows, 8, 8, 3)).astype("f"),
            "label": rng.integers(0, CLASSES, rows).astype("i"),
        }

    return trained(loss, params, optimizer or optax.sgd(0.05, momentum=0.9), batch)


def rnn(optimizer: Any = None, layers: int = 2, width: int = 16) -> Model:
    """Gated recurrent layers, each a scan over time; the loss is of the last state and of each step's output."""

    def params() -> Tree:
        keys = jax.random.split(jax.random.key(30), 2 * layers + 1)
        return {
            "layers": [
                {
                    "input": _weights(keys[2 * i], width, 3, width),
                    "hidden": _weights(keys[2 * i + 1], width, 3, width),
                    "bias": jnp.full((3, width), 0.1),
                }
                for i in range(layers)
            ],
            "out": _weights(keys[-1], width, CLASSES),
        }

    def layer(x: Any, p: Tree) -> Any:
        def cell(h: Any, now: Any) -> Any:
            mine = jnp.einsum("bd,dgw->bgw", h, p["hidden"])
            reset, update = jax.nn.sigmoid(now[:, 0] + mine[:, 0]), jax.nn.sigmoid(now[:, 1] + mine[:, 1])
            new = jnp.tanh(now[:, 2] + reset * mine[:, 2])
            h = (1 - update) * h + update * new
            return h, h

        inputs = jnp.einsum("btd,dgw->btgw", x, p["input"]) + p["bias"]
        _, out = jax.lax.scan(cell, jnp.zeros((x.shape[0], width), x.dtype), jnp.swapaxes(inputs, 0, 1))
        return jnp.swapaxes(out, 0, 1)

    def loss(params: Tree, data: Tree, _: Any) -> Any:
        x = data["x"].astype(params["out"].dtype)
        for p in params["layers"]:
            x = layer(x, p)
        each = optax.softmax_cross_entropy_with_integer_labels(x @ params["out"], data["y"])
        return each.mean() + each[:, -1].mean(), {"last": each[:, -1].sum()}

    def batch(seed: int, rows: int = BATCH) -> Tree:
        rng = np.random.default_rng(seed)
        return {
            "x": rng.normal(size=(rows, LENGTH, width)).astype("f"),
            "y": rng.integers(0, CLASSES, (rows, LENGTH)).astype("i"),
        }

    return trained(loss, params, optimizer or optax.adam(1e-2), batch)
