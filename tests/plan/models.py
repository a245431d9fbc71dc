"""Small training steps, captured as `frontends/` would: an MLP and a decoder-only transformer, with Adam."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.mlir import serialize_portable_artifact

from automap_launch.train_step import Argument, Result, StepIdentity, TrainStep, fingerprint_of

Tree = Any


def capture(step: Callable[..., Any], *args: Tree, states: int, donated: bool = True) -> TrainStep:
    """Lowers `step(*args)`, whose first `states` arguments come back as its first results."""
    count = len(jax.tree.leaves(args[:states]))
    jitted = jax.jit(step, keep_unused=True)
    lowered = jitted.trace(*args).lower(lowering_platforms=("cpu",))
    module = lowered.compiler_ir("stablehlo")
    names = ("params", "optimizer", "batch")
    leaves = jax.tree_util.tree_leaves_with_path(dict(zip(names, args, strict=True)))
    order = {path: i for i, path in enumerate(_paths(names, args))}
    arguments: list[Argument | None] = [None] * len(leaves)
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        index = order[name]
        state = index < count
        arguments[index] = Argument(
            name, tuple(leaf.shape), str(leaf.dtype), "state" if state else "batch", donated and state
        )
    results = tuple(
        Result(f"{i}", tuple(leaf.shape), str(leaf.dtype), i if i < count else None)
        for i, leaf in enumerate(jax.tree.leaves(jax.eval_shape(step, *args)))
    )
    artifact = serialize_portable_artifact(module.operation.get_asm(enable_debug_info=True), "1.0.0")
    return TrainStep(
        identity=StepIdentity(step.__name__, None),
        frontend="jax",
        arguments=tuple(a for a in arguments if a is not None),
        results=results,
        modules={"cpu": artifact},
        fingerprint=fingerprint_of(str(module)),
    )


def _paths(names: tuple[str, ...], args: tuple[Tree, ...]) -> list[str]:
    return [
        jax.tree_util.keystr((jax.tree_util.DictKey(name), *path), simple=True, separator="/")
        for name, tree in zip(names, args, strict=True)
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _adam_step(loss: Callable[[Tree, Tree], Any], params: Tree, batch: Tree) -> TrainStep:
    optimizer = optax.adam(1e-3)

    def train_step(params: Tree, state: Tree, batch: Tree) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return capture(train_step, params, jax.eval_shape(optimizer.init, params), batch, states=2)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


@cache
def mlp(width: int = 256, inputs: int = 64, classes: int = 16, batch: int = 32) -> TrainStep:
    """Three layers; the two hidden ones have different sizes, so that each is a group of its own."""
    sizes = (inputs, width, 2 * width, classes)

    def loss(params: Tree, batch: Tree) -> Any:
        x = batch["x"]
        for i, layer in enumerate(params):
            x = x @ layer["w"] + layer["b"]
            x = x if i == len(params) - 1 else jax.nn.relu(x)
        return optax.softmax_cross_entropy_with_integer_labels(x, batch["y"]).mean()

    params = [{"w": _floats(a, b), "b": _floats(b)} for a, b in itertools.pairwise(sizes)]
    return _adam_step(loss, params, {"x": _floats(batch, inputs), "y": _ints(batch)})


@cache
def transformer(
    *,
    layers: int = 2,
    d_model: int = 128,
    heads: int = 8,
    d_head: int = 16,
    d_ff: int = 512,
    vocab: int = 1024,
    batch: int = 32,
    length: int = 64,
) -> TrainStep:
    """Pre-norm decoder with tied embeddings and three-dimensional attention weights."""

    def norm(x: Any, scale: Any) -> Any:
        x = x - jnp.mean(x, -1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def block(p: Tree, x: Any, mask: Any) -> Any:
        h = norm(x, p["norm1"])
        q, k, v = (jnp.einsum("btd,dhk->bthk", h, p[name]) for name in ("q", "k", "v"))
        weights = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) + mask, -1)
        x = x + jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", weights, v), p["o"])
        return x + jax.nn.relu(norm(x, p["norm2"]) @ p["wi"]) @ p["wo"]

    def loss(params: Tree, batch: Tree) -> Any:
        x = params["embedding"][batch["tokens"]] + params["position"]
        mask = jnp.where(jnp.tril(jnp.ones((length, length), bool)), 0.0, -1e9)
        for p in params["layers"]:
            x = block(p, x, mask)
        logits = norm(x, params["norm"]) @ params["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    attention = {name: _floats(d_model, heads, d_head) for name in ("q", "k", "v")}
    layer = {
        **attention,
        "o": _floats(heads, d_head, d_model),
        "norm1": _floats(d_model),
        "norm2": _floats(d_model),
        "wi": _floats(d_model, d_ff),
        "wo": _floats(d_ff, d_model),
    }
    params = {
        "embedding": _floats(vocab, d_model),
        "position": _floats(length, d_model),
        "norm": _floats(d_model),
        "layers": [layer] * layers,
    }
    return _adam_step(loss, params, {"tokens": _ints(batch, length), "labels": _ints(batch, length)})
