"""Small models as users write them: each gives (step, abstract state, abstract batch)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Spec

F32, I32 = jnp.float32, jnp.int32
Tree = Any
Model = tuple[Callable[..., Any], tuple[Tree, ...], tuple[Tree, ...]]


def trained(loss: Callable[..., jax.Array], params: Tree, *batch: Tree) -> Model:
    """Adam on a loss: `step(params, slots, *batch) -> (params, slots, loss)`."""
    optimizer = optax.adam(1e-3)

    def step(params: Tree, slots: Tree, *batch: Tree) -> tuple[Tree, Tree, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        updates, slots = optimizer.update(gradient, slots, params)
        return optax.apply_updates(params, updates), slots, value

    return step, (params, jax.eval_shape(optimizer.init, params)), batch


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def mlp(widths: tuple[int, ...] = (24, 64, 32, 8), batch: int = 16) -> Model:
    """Widths from the input's to the output's; relu between."""

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        for k, layer in enumerate(params):
            x = x @ layer["w"] + layer["b"]
            if k + 1 < len(params):
                x = jax.nn.relu(x)
        return jnp.mean((x - y) ** 2)

    params = [{"w": Spec((a, b), F32), "b": Spec((b,), F32)} for a, b in itertools.pairwise(widths)]
    return trained(loss, params, Spec((batch, widths[0]), F32), Spec((batch, widths[-1]), F32))


LM = {"model": 32, "heads": 4, "head": 12, "hidden": 96, "vocab": 256, "tokens": 20, "batch": 8}


def _layer_params(*stack: int) -> Tree:
    model, heads, head, hidden = (LM[k] for k in ("model", "heads", "head", "hidden"))
    shapes = {
        "q": (model, heads, head), "k": (model, heads, head), "v": (model, heads, head), "o": (heads, head, model),
        "up": (model, hidden), "down": (hidden, model), "norm1": (model,), "norm2": (model,),
    }  # fmt: skip
    return {name: Spec((*stack, *shape), F32) for name, shape in shapes.items()}


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _layer(params: Tree, x: jax.Array) -> jax.Array:
    h = _norm(x, params["norm1"])
    q, k, v = (jnp.einsum("btd,dhk->bthk", h, params[n]) for n in "qkv")
    mask = jnp.where(jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)), 0.0, -1e9)
    weights = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) + mask, -1)
    x = x + jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", weights, v), params["o"])
    return x + jax.nn.gelu(_norm(x, params["norm2"]) @ params["up"]) @ params["down"]


def language_model(layers: int = 2, scan: bool = False, remat: bool = False) -> Model:
    """Decoder-only, embedding tied with the logits; layers unrolled or scanned over stacked parameters."""
    layer = jax.checkpoint(_layer) if remat else _layer

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x = params["embed"][batch["tokens"]]
        if scan:
            x, _ = jax.lax.scan(lambda x, p: (layer(p, x), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = layer(p, x)
        return cross_entropy(_norm(x, params["norm"]) @ params["embed"].T, batch["labels"])

    params = {
        "embed": Spec((LM["vocab"], LM["model"]), F32),
        "norm": Spec((LM["model"],), F32),
        "layers": _layer_params(layers) if scan else [_layer_params() for _ in range(layers)],
    }
    tokens = Spec((LM["batch"], LM["tokens"]), I32)
    return trained(loss, params, {"tokens": tokens, "labels": tokens})


def convolutional(batch: int = 8) -> Model:
    """Two convolutions with group norm, max and average pooling, a dense head; NHWC."""

    def conv(x: jax.Array, w: jax.Array, stride: int) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Tree, image: jax.Array, label: jax.Array) -> jax.Array:
        x = jax.nn.relu(conv(image, params["conv1"], 1))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x - jnp.mean(x, (1, 2), keepdims=True)
        x = jax.nn.relu(conv(x, params["conv2"], 2))
        x = jnp.mean(x, (1, 2))
        return cross_entropy(x @ params["dense"], label)

    params = {"conv1": Spec((3, 3, 4, 16), F32), "conv2": Spec((3, 3, 16, 40), F32), "dense": Spec((40, 6), F32)}
    return trained(loss, params, Spec((batch, 12, 12, 4), F32), Spec((batch,), I32))


def recurrent(batch: int = 8, steps: int = 10) -> Model:
    """An Elman network scanned over time, its batch argument [batch, time, features]."""

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        def cell(state: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jnp.tanh(now @ params["in"] + state @ params["rec"] + params["bias"])
            return state, state

        _, states = jax.lax.scan(cell, jnp.zeros((x.shape[0], 24)), jnp.swapaxes(x, 0, 1))
        return jnp.mean((jnp.swapaxes(states, 0, 1) @ params["out"] - y) ** 2)

    params = {
        "in": Spec((12, 24), F32), "rec": Spec((24, 24), F32), "bias": Spec((24,), F32), "out": Spec((24, 6), F32),
    }  # fmt: skip
    return trained(loss, params, Spec((batch, steps, 12), F32), Spec((batch, steps, 6), F32))
