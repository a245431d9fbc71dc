"""Pre-trains BERT (Devlin et al. 2018) as a masked language model, in Flax NNX.

The text is the language reference behind Python's `help()`, byte by byte, so nothing is downloaded:

    python train.py --size tiny --steps 20
    python train.py --size large --batch-size 64 --length 512
"""

import argparse
import pydoc_data.topics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


@dataclass(frozen=True)
class Config:
    vocabulary: int
    width: int
    hidden: int
    heads: int
    layers: int
    positions: int


SIZES = {
    "tiny": Config(vocabulary=264, width=128, hidden=512, heads=4, layers=2, positions=128),
    "large": Config(vocabulary=30522, width=1024, hidden=4096, heads=16, layers=24, positions=512),
    # As deep again: the largest BERT of the Auto-MAP paper.
    "48": Config(vocabulary=30522, width=1024, hidden=4096, heads=16, layers=48, positions=512),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a step")
    parser.add_argument("--length", type=int, default=64, help="tokens a sequence (at most 512 as published)")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--warmup", type=int, default=10, help="steps until the full learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--permute-rows", action="store_true", help="shuffle the sequences inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data

CLASSIFY, SEPARATE, MASK, FIRST_BYTE = 1, 2, 3, 8
MASKED = 0.15  # of all tokens are predicted


def load_text() -> np.ndarray:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + FIRST_BYTE


def batches(text: np.ndarray, rows: int, length: int, seed: int, permute: bool = False) -> Iterator[list[np.ndarray]]:
    """Endless batches, int32: tokens and segments [rows, length], positions and targets [rows, predicted].

    A row is two neighbouring passages, each closed by a separator. Of the tokens to predict, eight in ten are
    masked, one is a random byte and one is left as it is.
    """
    rng = np.random.default_rng(seed)
    order = np.random.default_rng(seed + 1)
    predicted = round(MASKED * length)
    place = np.arange(length)
    while True:
        starts = rng.integers(0, len(text) - length, rows)
        middle = rng.integers(length // 4, 3 * length // 4, (rows, 1))  # the first passage's separator
        tokens = text[starts[:, None] + place]
        tokens[:, 0], tokens[:, -1] = CLASSIFY, SEPARATE
        np.put_along_axis(tokens, middle, SEPARATE, axis=1)

        rank = rng.random((rows, length))
        rank[tokens < FIRST_BYTE] = 1.0  # what is not text is never predicted
        positions = np.sort(np.argsort(rank, axis=1)[:, :predicted], axis=1)
        targets = np.take_along_axis(tokens, positions, axis=1)
        chance = rng.random(targets.shape)
        noise = rng.integers(FIRST_BYTE, FIRST_BYTE + 256, targets.shape)
        replaced = np.where(chance < 0.8, MASK, np.where(chance < 0.9, noise, targets))
        np.put_along_axis(tokens, positions, replaced.astype(np.int32), axis=1)

        segments = (place > middle).astype(np.int32)
        batch = [tokens, segments, positions.astype(np.int32), targets]
        if permute:
            rearranged = order.permutation(rows)
            batch = [array[rearranged] for array in batch]
        yield batch


# Model

INITIALIZER = nnx.initializers.truncated_normal(0.02)


def linear(width: int, out: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(width, out, kernel_init=INITIALIZER, rngs=rngs)


def embedding(count: int, width: int, rngs: nnx.Rngs) -> nnx.Embed:
    return nnx.Embed(count, width, embedding_init=INITIALIZER, rngs=rngs)


class Attention(nnx.Module):
    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        heads = (config.heads, config.width // config.heads)
        self.query = nnx.LinearGeneral(config.width, heads, kernel_init=INITIALIZER, rngs=rngs)
        self.key = nnx.LinearGeneral(config.width, heads, kernel_init=INITIALIZER, rngs=rngs)
        self.value = nnx.LinearGeneral(config.width, heads, kernel_init=INITIALIZER, rngs=rngs)
        self.out = nnx.LinearGeneral(heads, config.width, axis=(-2, -1), kernel_init=INITIALIZER, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jax.nn.dot_product_attention(self.query(x), self.key(x), self.value(x)))


class Block(nnx.Module):
    """A layer of the encoder; x: [batch, length, width]. The norms come after the sums, as published."""

    def __init__(self, config: Config, dropout: float, rngs: nnx.Rngs) -> None:
        self.attention = Attention(config, rngs)
        self.attention_norm = nnx.LayerNorm(config.width, epsilon=1e-12, rngs=rngs)
        self.wi = linear(config.width, config.hidden, rngs)
        self.wo = linear(config.hidden, config.width, rngs)
        self.mlp_norm = nnx.LayerNorm(config.width, epsilon=1e-12, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.mlp_norm(x + self.dropout(self.wo(nnx.gelu(self.wi(x), approximate=False))))


class Bert(nnx.Module):
    def __init__(self, config: Config, dropout: float, rngs: nnx.Rngs) -> None:
        self.token = embedding(config.vocabulary, config.width, rngs)
        self.position = embedding(config.positions, config.width, rngs)
        self.segment = embedding(2, config.width, rngs)
        self.embedding_norm = nnx.LayerNorm(config.width, epsilon=1e-12, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.blocks = nnx.List([Block(config, dropout, rngs) for _ in range(config.layers)])
        self.head = linear(config.width, config.width, rngs)
        self.head_norm = nnx.LayerNorm(config.width, epsilon=1e-12, rngs=rngs)
        self.head_bias = nnx.Param(jnp.zeros(config.vocabulary))

    def __call__(self, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        """Logits at `positions`: [batch, predicted, vocabulary]."""
        x = self.token(tokens) + self.position(jnp.arange(tokens.shape[1])) + self.segment(segments)
        x = self.dropout(self.embedding_norm(x))
        for block in self.blocks:
            x = block(x)
        x = jnp.take_along_axis(x, positions[..., None], axis=1)
        x = self.head_norm(nnx.gelu(self.head(x), approximate=False))
        return self.token.attend(x) + self.head_bias


# Training


@nnx.jit
def train_step(model: Bert, optimizer: nnx.Optimizer, batch: list[jax.Array]) -> jax.Array:
    tokens, segments, positions, targets = batch

    def loss_fn(model: Bert) -> jax.Array:
        logits = model(tokens, segments, positions)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def save(path: str, losses: list[jax.Array], state: Any) -> None:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    arrays = {jax.tree_util.keystr(name, simple=True, separator="/"): np.asarray(leaf) for name, leaf in leaves}
    np.savez(path, loss=np.asarray([float(loss) for loss in losses]), **arrays)


def main() -> None:
    args = parse_arguments()
    config = SIZES[args.size]
    batch = batches(load_text(), args.batch_size, args.length, args.seed, args.permute_rows)

    model = Bert(config, args.dropout, nnx.Rngs(args.seed))
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, args.learning_rate, args.warmup, max(args.steps, args.warmup + 1)
    )
    optimizer = nnx.Optimizer(model, optax.adamw(schedule, weight_decay=args.weight_decay), wrt=nnx.Param)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    print(f"BERT {args.size}: {count:,} parameters", flush=True)

    losses = []
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        loss = train_step(model, optimizer, next(batch))
        losses.append(loss)
        if step % args.log_every == 0:
            seconds = (time.perf_counter() - start) / step
            print(f"step {step:5d}  loss {loss:.4f}  {1e3 * seconds:.0f} ms a step", flush=True)
    if args.dump:
        state = {"params": nnx.state(model, nnx.Param), "opt_state": nnx.state(optimizer)}
        save(args.dump, losses, {name: nnx.to_pure_dict(part) for name, part in state.items()})


if __name__ == "__main__":
    main()
