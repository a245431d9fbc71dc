"""Trains GPT-2 (Radford et al. 2019) in plain JAX: one scan over the layers, recomputed in the backward pass.

The text is the language reference behind Python's `help()`, byte by byte, so nothing is downloaded:

    python train.py --size tiny --steps 20
    python train.py --size xl --batch-size 64 --length 1024
"""

import argparse
import functools
import pydoc_data.topics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    vocabulary: int
    width: int
    heads: int
    layers: int
    positions: int


SIZES = {
    "tiny": Config(vocabulary=256, width=128, heads=4, layers=4, positions=128),
    "small": Config(vocabulary=50257, width=768, heads=12, layers=12, positions=1024),
    "xl": Config(vocabulary=50257, width=1600, heads=25, layers=48, positions=1024),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a step")
    parser.add_argument("--length", type=int, default=64, help="tokens a sequence (at most 1024 as published)")
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--warmup", type=int, default=10, help="steps until the full learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--permute-rows", action="store_true", help="shuffle the sequences inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data


def load_text() -> np.ndarray:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def batches(text: np.ndarray, rows: int, length: int, seed: int, permute: bool = False) -> Iterator[np.ndarray]:
    """Endless random windows of the text, each [rows, length + 1]: inputs and, one byte on, their targets."""
    rng = np.random.default_rng(seed)
    order = np.random.default_rng(seed + 1)
    while True:
        starts = rng.integers(0, len(text) - length, rows)
        if permute:
            starts = order.permutation(starts)
        yield text[starts[:, None] + np.arange(length + 1)]


# Model


@functools.partial(jax.jit, static_argnames="config")
def init_params(key: jax.Array, config: Config) -> Params:
    """Parameters of all layers stacked: the first dim of everything in `blocks` is the layer."""
    layers, width, heads = config.layers, config.width, config.heads
    head = width // heads
    keys = iter(jax.random.split(key, 6))

    def normal(*shape: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape)

    def norm(*stack: int) -> Params:
        return {"scale": jnp.ones((*stack, width)), "bias": jnp.zeros((*stack, width))}

    residual = 0.02 / np.sqrt(2 * layers)
    return {
        "token": normal(config.vocabulary, width),
        "position": normal(config.positions, width, scale=0.01),
        "blocks": {
            "norm_1": norm(layers),
            "qkv": {"kernel": normal(layers, width, 3, heads, head), "bias": jnp.zeros((layers, 3, heads, head))},
            "out": {"kernel": normal(layers, heads, head, width, scale=residual), "bias": jnp.zeros((layers, width))},
            "norm_2": norm(layers),
            "fc": {"kernel": normal(layers, width, 4 * width), "bias": jnp.zeros((layers, 4 * width))},
            "proj": {"kernel": normal(layers, 4 * width, width, scale=residual), "bias": jnp.zeros((layers, width))},
        },
        "norm": norm(),
    }


def layer_norm(params: Params, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    if rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


def attention(params: Params, x: jax.Array) -> jax.Array:
    """Causal self-attention; x: [batch, length, width]."""
    qkv = jnp.einsum("btd,dchk->cbthk", x, params["qkv"]["kernel"]) + params["qkv"]["bias"][:, None, None]
    query, key, value = qkv
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / np.sqrt(query.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    mixed = jnp.einsum("bhts,bshk->bthk", weights, value)
    return jnp.einsum("bthk,hkd->btd", mixed, params["out"]["kernel"]) + params["out"]["bias"]


def mlp(params: Params, x: jax.Array) -> jax.Array:
    x = jax.nn.gelu(x @ params["fc"]["kernel"] + params["fc"]["bias"])
    return x @ params["proj"]["kernel"] + params["proj"]["bias"]


def loss_fn(params: Params, tokens: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Mean cross-entropy of each token given the ones before it. tokens: [batch, length + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    @jax.checkpoint
    def block(x: jax.Array, layer: tuple[Params, jax.Array]) -> tuple[jax.Array, None]:
        params, key = layer
        key_1, key_2 = jax.random.split(key)
        x = x + dropout(attention(params, layer_norm(params["norm_1"], x)), rate, key_1)
        x = x + dropout(mlp(params, layer_norm(params["norm_2"], x)), rate, key_2)
        return x, None

    layers = params["blocks"]["norm_1"]["scale"].shape[0]
    key, key_embedding = jax.random.split(key)
    x = params["token"][inputs] + params["position"][: inputs.shape[1]]
    x = dropout(x, rate, key_embedding)
    x, _ = jax.lax.scan(block, x, (params["blocks"], jax.random.split(key, layers)))
    logits = layer_norm(params["norm"], x) @ params["token"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


# Training


def save(path: str, losses: list[jax.Array], state: Any) -> None:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    arrays = {jax.tree_util.keystr(name, simple=True, separator="/"): np.asarray(leaf) for name, leaf in leaves}
    np.savez(path, loss=np.asarray([float(loss) for loss in losses]), **arrays)


def main() -> None:
    args = parse_arguments()
    config = SIZES[args.size]
    batch = batches(load_text(), args.batch_size, args.length, args.seed, args.permute_rows)

    schedule = optax.warmup_cosine_decay_schedule(
        0.0, args.learning_rate, args.warmup, max(args.steps, args.warmup + 1), end_value=args.learning_rate / 10
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            schedule,
            b2=0.95,
            weight_decay=args.weight_decay,
            mask=functools.partial(jax.tree.map_with_path, lambda path, _: path[-1].key not in ("bias", "scale")),
        ),
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, tokens, key):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, args.dropout, key)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    key = jax.random.key(args.seed)
    params = init_params(key, config)
    opt_state = optimizer.init(params)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"GPT-2 {args.size}: {count:,} parameters", flush=True)

    losses = []
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        params, opt_state, loss = train_step(params, opt_state, next(batch), jax.random.fold_in(key, step))
        losses.append(loss)
        if step % args.log_every == 0:
            seconds = (time.perf_counter() - start) / step
            print(f"step {step:5d}  loss {loss:.4f}  {1e3 * seconds:.0f} ms a step", flush=True)
    if args.dump:
        save(args.dump, losses, {"params": params, "opt_state": opt_state})


if __name__ == "__main__":
    main()
