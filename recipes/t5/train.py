"""Pre-trains T5 (Raffel et al. 2020, the 1.0 architecture) by span corruption, in Flax Linen.

The text is the language reference behind Python's `help()`, byte by byte, so nothing is downloaded:

    python train.py --size tiny --steps 20
    python train.py --size base --batch-size 128 --optimizer adam
"""

import argparse
import dataclasses
import functools
import pydoc_data.topics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState


@dataclass(frozen=True)
class Config:
    """Sizes of a T5: `layers` in the encoder and as many in the decoder; `d_kv` is of one head."""

    vocabulary: int
    d_model: int
    d_ff: int
    heads: int
    d_kv: int
    layers: int
    buckets: int = 32  # of relative positions
    max_distance: int = 128
    dtype: str = "float32"


SIZES = {
    "tiny": Config(vocabulary=320, d_model=128, d_ff=256, heads=4, d_kv=32, layers=2),
    "base": Config(vocabulary=32128, d_model=768, d_ff=3072, heads=12, d_kv=64, layers=12),
    "3b": Config(vocabulary=32128, d_model=1024, d_ff=16384, heads=32, d_kv=128, layers=24),
    "11b": Config(vocabulary=32128, d_model=1024, d_ff=65536, heads=128, d_kv=128, layers=24),
}
LEARNING_RATES = {"adafactor": 1e-2, "adam": 1e-3}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a step")
    parser.add_argument("--length", type=int, default=64, help="tokens of the encoder's input (512 as published)")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adafactor")
    parser.add_argument("--learning-rate", type=float, help="default: 1e-2 for adafactor, 1e-3 for adam")
    parser.add_argument("--warmup", type=int, default=10_000, help="steps before the rate falls as 1 / sqrt(step)")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--remat", action="store_true", help="keep no activations inside a block for its gradient")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--permute-rows", action="store_true", help="shuffle the sequences inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data

PAD, EOS, FIRST_BYTE = 0, 1, 3  # 2 is the unknown token, which bytes do not need
NOISE_DENSITY = 0.15
MEAN_SPAN = 3


def load_text() -> np.ndarray:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + FIRST_BYTE


def corrupted(length: int) -> tuple[int, int]:
    """Of a window of `length` tokens: how many are noise, and in how many spans."""
    noise = round(length * NOISE_DENSITY)
    return noise, max(1, round(noise / MEAN_SPAN))


def window_for(length: int) -> int:
    """The longest window that makes an input of at most `length` tokens."""

    def input_length(window: int) -> int:
        noise, spans = corrupted(window)
        return window - noise + spans + 1  # a sentinel for each span, and EOS

    window = length
    while input_length(window + 1) <= length:
        window += 1
    return window


def segments(rng: np.random.Generator, total: int, count: int) -> np.ndarray:
    """`count` random lengths of at least 1 that add up to `total`."""
    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def corrupt(tokens: np.ndarray, rng: np.random.Generator, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The window with each span of noise replaced by a sentinel, and the sentinels with what they stand for."""
    noise, spans = corrupted(len(tokens))
    lengths = np.stack([segments(rng, len(tokens) - noise, spans), segments(rng, noise, spans)], axis=1)
    pieces = np.split(tokens, np.cumsum(lengths)[:-1])
    sentinels = vocabulary - 1 - np.arange(spans, dtype=tokens.dtype)[:, None]
    end = np.array([EOS], tokens.dtype)
    inputs = [part for kept, sentinel in zip(pieces[::2], sentinels, strict=True) for part in (kept, sentinel)]
    targets = [part for lost, sentinel in zip(pieces[1::2], sentinels, strict=True) for part in (sentinel, lost)]
    return np.concatenate([*inputs, end]), np.concatenate([*targets, end])


def batches(
    tokens: np.ndarray, rows: int, length: int, vocabulary: int, seed: int, *, permute: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Endless batches from random windows of the text, int32.

    Inputs [rows, length], the decoder's inputs and its targets, one token on, both [rows, target length].
    """
    rng = np.random.default_rng(seed)
    order = np.random.default_rng(seed + 1)
    window = window_for(length)
    while True:
        starts = rng.integers(0, len(tokens) - window, rows)
        pairs = [corrupt(tokens[start : start + window], rng, vocabulary) for start in starts]
        if permute:
            pairs = [pairs[row] for row in order.permutation(rows)]
        inputs, targets = (np.stack(side) for side in zip(*pairs, strict=True))
        shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)
        yield inputs, shifted, targets


# Model


def normal(fan_in: int) -> nn.initializers.Initializer:
    return nn.initializers.normal(fan_in**-0.5)


def position_buckets(queries: int, keys: int, config: Config, causal: bool) -> np.ndarray:
    """Bucket of each key's position relative to each query's, [queries, keys]: exact when near, logarithmic beyond."""
    distance = np.arange(queries)[:, None] - np.arange(keys)[None, :]
    buckets, offset = config.buckets, 0
    if causal:
        distance = np.maximum(distance, 0)
    else:
        buckets //= 2
        offset = np.where(distance < 0, buckets, 0)
        distance = np.abs(distance)
    exact = buckets // 2
    scale = np.log(np.maximum(distance, 1) / exact) / np.log(config.max_distance / exact)
    far = np.minimum(exact + (scale * (buckets - exact)).astype(int), buckets - 1)
    return offset + np.where(distance < exact, distance, far)


class PositionBias(nn.Module):
    """What attention scores gain by relative position: [1, heads, queries, keys]."""

    config: Config
    causal: bool

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        config = self.config
        table = self.param("embedding", normal(config.d_model), (config.buckets, config.heads), config.dtype)
        bias = table[position_buckets(length, length, config, self.causal)].transpose(2, 0, 1)
        if self.causal:
            bias = jnp.where(np.tri(length, dtype=bool), bias, -1e9)
        return bias[None]


class Attention(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, bias: jax.Array | float) -> jax.Array:
        """x: [batch, queries, d_model], memory: [batch, keys, d_model]."""
        config = self.config
        dense = functools.partial(nn.DenseGeneral, use_bias=False, param_dtype=config.dtype)

        def heads(name: str, fan_in: int) -> nn.DenseGeneral:
            return dense((config.heads, config.d_kv), kernel_init=normal(fan_in), name=name)

        query = heads("query", config.d_model * config.d_kv)(x)  # which spares the scores their 1 / sqrt(d_kv)
        key = heads("key", config.d_model)(memory)
        value = heads("value", config.d_model)(memory)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        out = normal(config.heads * config.d_kv)
        return dense(config.d_model, axis=(-2, -1), kernel_init=out, name="out")(mixed)


class FeedForward(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        dense = functools.partial(nn.Dense, use_bias=False, param_dtype=config.dtype)
        x = dense(config.d_ff, kernel_init=normal(config.d_model), name="wi")(x)
        return dense(config.d_model, kernel_init=normal(config.d_ff), name="wo")(nn.relu(x))


class Block(nn.Module):
    """A layer of the encoder, or of the decoder when there is a `memory` to attend to."""

    config: Config
    dropout: float
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, memory: jax.Array | None = None) -> jax.Array:
        drop = nn.Dropout(self.dropout, deterministic=self.deterministic)
        norm = functools.partial(nn.RMSNorm, param_dtype=self.config.dtype)
        h = norm(name="attention_norm")(x)
        x = x + drop(Attention(self.config, name="attention")(h, h, bias))
        if memory is not None:
            h = norm(name="cross_norm")(x)
            x = x + drop(Attention(self.config, name="cross_attention")(h, memory, 0.0))
        h = norm(name="mlp_norm")(x)
        return x + drop(FeedForward(self.config, name="mlp")(h))


class Stack(nn.Module):
    """The encoder, or the decoder when there is a `memory`. Takes and returns [batch, length, d_model]."""

    config: Config
    dropout: float
    remat: bool
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None, deterministic: bool = True) -> jax.Array:
        drop = nn.Dropout(self.dropout, deterministic=deterministic)
        block = nn.remat(Block) if self.remat else Block
        x = drop(x)
        bias = PositionBias(self.config, self.causal, name="position")(x.shape[1])
        for layer in range(self.config.layers):
            x = block(self.config, self.dropout, deterministic, name=f"block_{layer}")(x, bias, memory)
        return drop(nn.RMSNorm(param_dtype=self.config.dtype, name="norm")(x))


class T5(nn.Module):
    config: Config
    dropout: float = 0.0
    remat: bool = False

    @nn.compact
    def __call__(self, inputs: jax.Array, decoder_inputs: jax.Array, deterministic: bool = True) -> jax.Array:
        """Logits [batch, target length, vocabulary]."""
        config = self.config
        init = nn.initializers.normal(1.0)
        embed = nn.Embed(config.vocabulary, config.d_model, param_dtype=config.dtype, embedding_init=init, name="embed")
        encoder = Stack(config, self.dropout, self.remat, causal=False, name="encoder")
        decoder = Stack(config, self.dropout, self.remat, causal=True, name="decoder")
        memory = encoder(embed(inputs), deterministic=deterministic)
        x = decoder(embed(decoder_inputs), memory, deterministic=deterministic)
        return embed.attend(x * config.d_model**-0.5)


# Training


def make_optimizer(args: argparse.Namespace) -> optax.GradientTransformation:
    peak = args.learning_rate or LEARNING_RATES[args.optimizer]

    def schedule(step: jax.Array) -> jax.Array:
        return peak * jnp.sqrt(args.warmup / jnp.maximum(step, args.warmup))

    return optax.adafactor(schedule) if args.optimizer == "adafactor" else optax.adam(schedule)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(
    state: TrainState, inputs: jax.Array, decoder_inputs: jax.Array, targets: jax.Array, key: jax.Array
) -> tuple[TrainState, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
        rngs = {"dropout": jax.random.fold_in(key, state.step)}
        logits = state.apply_fn({"params": params}, inputs, decoder_inputs, deterministic=False, rngs=rngs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def save(path: str, losses: list[jax.Array], state: Any) -> None:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    arrays = {jax.tree_util.keystr(name, simple=True, separator="/"): np.asarray(leaf) for name, leaf in leaves}
    np.savez(path, loss=np.asarray([float(loss) for loss in losses]), **arrays)


def main() -> None:
    args = parse_arguments()
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    config = dataclasses.replace(SIZES[args.size], dtype=args.dtype)
    text = load_text()
    batch = batches(text, args.batch_size, args.length, config.vocabulary, args.seed, permute=args.permute_rows)

    model = T5(config, args.dropout, args.remat)
    key = jax.random.key(args.seed)
    sample = jnp.zeros((1, 8), jnp.int32)
    params = jax.jit(model.init)(key, sample, sample)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=make_optimizer(args))
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"T5 {args.size}: {count:,} parameters", flush=True)

    losses = []
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        state, loss = train_step(state, *next(batch), key)
        losses.append(loss)
        if step % args.log_every == 0:
            seconds = (time.perf_counter() - start) / step
            print(f"step {step:5d}  loss {loss:.4f}  {1e3 * seconds:.0f} ms a step", flush=True)
    if args.dump:
        save(args.dump, losses, {"params": state.params, "opt_state": state.opt_state})


if __name__ == "__main__":
    main()
