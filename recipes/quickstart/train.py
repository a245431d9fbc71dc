"""Trains a small decoder-only transformer, byte by byte, on the English text that Python carries in itself.

The text is the language reference behind `help()` (`pydoc_data.topics`), so nothing is downloaded:

    python train.py
    python train.py --steps 1000 --width 512 --learning-rate 5e-4
"""

import argparse
import pydoc_data.topics
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCABULARY = 256  # a token is a byte

Params = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a step")
    parser.add_argument("--length", type=int, default=64, help="bytes a sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256, help="size of the residual stream")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024, help="size of the feed-forward layer")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, help="steps between two printed losses")
    parser.add_argument("--eval-batches", type=int, default=16)
    parser.add_argument("--permute-rows", action="store_true", help="shuffle the sequences inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data


def load_text() -> tuple[np.ndarray, np.ndarray]:
    """The text as bytes, int32: the first nine tenths to train on, the rest to evaluate on."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    split = len(tokens) * 9 // 10
    return tokens[:split], tokens[split:]


def batches(tokens: np.ndarray, rows: int, length: int, seed: int, permute: bool = False) -> Iterator[np.ndarray]:
    """Endless random windows of the text, each [rows, length + 1]: inputs and, one byte on, their targets."""
    rng = np.random.default_rng(seed)
    order = np.random.default_rng(seed + 1)
    while True:
        starts = rng.integers(0, len(tokens) - length, rows)
        if permute:
            starts = order.permutation(starts)
        yield tokens[starts[:, None] + np.arange(length + 1)]


# Model


def init_params(key: jax.Array, args: argparse.Namespace) -> Params:
    def normal(*shape: int, fan_in: int) -> jax.Array:
        nonlocal key
        key, subkey = jax.random.split(key)
        return jax.random.normal(subkey, shape) / np.sqrt(fan_in)

    width, hidden, heads = args.width, args.hidden, args.heads
    head = width // heads

    def block() -> Params:
        return {
            "norm_1": {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
            "attention": {
                "query": normal(width, heads, head, fan_in=width),
                "key": normal(width, heads, head, fan_in=width),
                "value": normal(width, heads, head, fan_in=width),
                "out": normal(heads, head, width, fan_in=width),
            },
            "norm_2": {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
            "mlp": {
                "wi": normal(width, hidden, fan_in=width),
                "bi": jnp.zeros(hidden),
                "wo": normal(hidden, width, fan_in=hidden),
                "bo": jnp.zeros(width),
            },
        }

    return {
        "embedding": 0.02 * normal(VOCABULARY, width, fan_in=1),
        "position": 0.02 * normal(args.length, width, fan_in=1),
        "blocks": [block() for _ in range(args.layers)],
        "norm": {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
        "head": normal(width, VOCABULARY, fan_in=width),
    }


def layer_norm(params: Params, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


def attention(params: Params, x: jax.Array) -> jax.Array:
    """Causal self-attention. x: [batch, length, width]."""
    query = jnp.einsum("btd,dhk->bthk", x, params["query"])
    key = jnp.einsum("btd,dhk->bthk", x, params["key"])
    value = jnp.einsum("btd,dhk->bthk", x, params["value"])
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / np.sqrt(query.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    mixed = jnp.einsum("bhts,bshk->bthk", weights, value)
    return jnp.einsum("bthk,hkd->btd", mixed, params["out"])


def mlp(params: Params, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ params["wi"] + params["bi"]) @ params["wo"] + params["bo"]


def drop(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    if rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


def loss_fn(params: Params, tokens: jax.Array, dropout: float, key: jax.Array) -> jax.Array:
    """Mean cross-entropy, in nats a byte, of each byte given the ones before it. tokens: [batch, length + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embedding"][inputs] + params["position"][: inputs.shape[1]]
    for i, block in enumerate(params["blocks"]):
        key_1, key_2 = jax.random.split(jax.random.fold_in(key, i))
        x = x + drop(attention(block["attention"], layer_norm(block["norm_1"], x)), dropout, key_1)
        x = x + drop(mlp(block["mlp"], layer_norm(block["norm_2"], x)), dropout, key_2)
    logits = layer_norm(params["norm"], x) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


# Training


def save(path: str, losses: list[jax.Array], state: Any) -> None:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    arrays = {jax.tree_util.keystr(name, simple=True, separator="/"): np.asarray(leaf) for name, leaf in leaves}
    np.savez(path, loss=np.asarray([float(loss) for loss in losses]), **arrays)


def main() -> None:
    args = parse_arguments()
    train_text, eval_text = load_text()

    schedule = optax.warmup_cosine_decay_schedule(0.0, args.learning_rate, min(20, args.steps // 10), args.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=args.weight_decay))

    @jax.jit
    def train_step(params, opt_state, tokens, key):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, args.dropout, key)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    @jax.jit
    def eval_step(params, tokens):
        return loss_fn(params, tokens, 0.0, jax.random.key(0))

    key = jax.random.key(args.seed)
    params = init_params(key, args)
    opt_state = optimizer.init(params)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{count / 1e6:.2f} million parameters, {len(train_text):,} bytes of text")

    losses = []
    start = time.perf_counter()
    batch = batches(train_text, args.batch_size, args.length, args.seed, args.permute_rows)
    for step in range(1, args.steps + 1):
        params, opt_state, loss = train_step(params, opt_state, next(batch), jax.random.fold_in(key, step))
        losses.append(loss)
        if step % args.log_every == 0:
            seconds = (time.perf_counter() - start) / step
            print(f"step {step:5d}  loss {loss:.4f}  {1e3 * seconds:.0f} ms a step", flush=True)

    batch = batches(eval_text, args.batch_size, args.length, args.seed)
    eval_loss = np.mean([eval_step(params, next(batch)) for _ in range(args.eval_batches)])
    print(f"eval loss {eval_loss:.4f}")
    if args.dump:
        save(args.dump, losses, {"params": params, "opt_state": opt_state})


if __name__ == "__main__":
    main()
